from __future__ import annotations

import base64
import itertools
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from server.vocabulary.bpe_json import BpeVocabulary
from server.vocabulary.byte import ByteVocabulary
from server.vocabulary.tiktoken_file import NUM_BASE_TOKENS, KimiVocabulary

K3_FILE = Path(__file__).parents[3] / "shared" / "k3" / "tiktoken.model"

CORPUS = ["the cat sat on the mat, the dog sat on the log", "<|close|>message<|sep|> is text here", "naïve café 北京 123 456"] * 3


@pytest.fixture(scope="session")
def k3() -> KimiVocabulary:
    if not K3_FILE.is_file():
        pytest.skip("K3's merge table is not beside the checkout")
    return KimiVocabulary.from_file(K3_FILE)


@pytest.fixture(scope="session")
def merge_table() -> bytes:
    """A `tiktoken.model` of K3's size: all single bytes, all pairs, and as many triples as fit."""
    sequences = itertools.chain.from_iterable(itertools.product(range(256), repeat=length) for length in (1, 2, 3))
    pieces = itertools.islice((bytes(sequence) for sequence in sequences), NUM_BASE_TOKENS)
    return b"".join(base64.b64encode(piece) + b" %d\n" % rank for rank, piece in enumerate(pieces))


@pytest.fixture(scope="session")
def synthetic_k3(merge_table: bytes, tmp_path_factory: pytest.TempPathFactory) -> KimiVocabulary:
    path = tmp_path_factory.mktemp("k3") / "tiktoken.model"
    path.write_bytes(merge_table)
    return KimiVocabulary.from_file(path)


@pytest.fixture(scope="session")
def tokenizer_json() -> str:
    """A small byte-level BPE trained on the spot, with control tokens in front (id 0) and behind."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    names = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")
    tokenizer.add_special_tokens([tokenizers.AddedToken(name, normalized=False) for name in names])
    text: str = tokenizer.to_str()
    return text


@pytest.fixture(scope="session")
def bpe(tokenizer_json: str, tmp_path_factory: pytest.TempPathFactory) -> BpeVocabulary:
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    path.write_text(tokenizer_json, encoding="utf-8")
    return BpeVocabulary.from_file(path)


@pytest.fixture(scope="session", params=["k3", "synthetic_k3", "bpe", "byte"])
def vocabulary(request: pytest.FixtureRequest) -> Any:
    return ByteVocabulary() if request.param == "byte" else request.getfixturevalue(request.param)
