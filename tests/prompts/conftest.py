from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from server.prompts.kimi_k3 import KimiK3Format
from server.vocabulary.base import Vocabulary
from server.vocabulary.bpe_json import BpeVocabulary
from server.vocabulary.byte import ByteVocabulary
from server.vocabulary.tiktoken_file import KimiVocabulary

K3_FILE = Path(__file__).parents[3] / "shared" / "k3" / "tiktoken.model"
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]


@pytest.fixture(scope="session")
def k3() -> KimiVocabulary:
    if not K3_FILE.is_file():
        pytest.skip("K3's merge table is not beside the checkout")
    return KimiVocabulary.from_file(K3_FILE)


@pytest.fixture(scope="session")
def bpe() -> BpeVocabulary:
    """Byte-level BPE with a few merges, and with control tokens in the middle of the ids, as other models have them."""
    characters = [chr(value) for value in PRINTABLE] + [chr(0x100 + number) for number in range(256 - len(PRINTABLE))]
    merges = [("<", "|"), ("|", ">"), ("m", "e"), ("s", "s"), ("me", "ss"), ("c", "l")]
    tokens = [*characters, *("".join(pair) for pair in merges)]
    names = ["<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"]
    return BpeVocabulary(
        {
            "version": "1.0",
            "added_tokens": [
                {"id": 100 + number, "content": name, "special": True, "normalized": False}
                | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
                for number, name in enumerate(names)
            ],
            "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "model": {
                "type": "BPE",
                "vocab": {token: number + len(names) * (number >= 100) for number, token in enumerate(tokens)},
                "merges": [" ".join(pair) for pair in merges],
            }
            | dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")),
        }
    )


@pytest.fixture(scope="session", params=["k3", "bpe", "byte"])
def vocabulary(request: pytest.FixtureRequest) -> Any:
    return ByteVocabulary() if request.param == "byte" else request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def kimi(vocabulary: Vocabulary) -> KimiK3Format:
    return KimiK3Format(vocabulary)


@pytest.fixture(scope="session")
def real_kimi(k3: KimiVocabulary) -> KimiK3Format:
    return KimiK3Format(k3)
