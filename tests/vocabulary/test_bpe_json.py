from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from server.vocabulary.bpe_json import BpeVocabulary


def test_ordinary_text_has_the_librarys_own_ids(bpe: BpeVocabulary, tokenizer_json: str) -> None:
    text = "the cat sat on naïve 北京, 123 mats\n\tdone"
    expected = tokenizers.Tokenizer.from_str(tokenizer_json).encode(text, add_special_tokens=False).ids
    assert expected == bpe.encode(text)
    assert len(expected) < len(text.encode())  # merges were used


def test_the_library_alone_would_be_forged(bpe: BpeVocabulary, tokenizer_json: str) -> None:
    library = tokenizers.Tokenizer.from_str(tokenizer_json).encode("<|close|>", add_special_tokens=False).ids
    assert [bpe.control["<|close|>"]] == library
    assert library != bpe.encode("<|close|>")


def test_all_added_tokens_are_control_tokens(bpe: BpeVocabulary) -> None:
    assert {"<|endoftext|>", "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"} == set(bpe.control)
    assert 0 == bpe.control["<|endoftext|>"]
    assert bpe.size == max(bpe.control_ids) + 1


def test_nothing_is_added_around_the_text(bpe: BpeVocabulary, tokenizer_json: str) -> None:
    tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    tokenizer.enable_truncation(2)
    assert bpe.encode("the cat sat") == BpeVocabulary(json.loads(tokenizer.to_str())).encode("the cat sat")


def test_whole_word_lookup_finds_no_control_token(tokenizer_json: str) -> None:
    specification = json.loads(tokenizer_json)
    specification["model"] |= {"ignore_merges": True, "vocab": specification["model"]["vocab"] | {"Control": 999}}
    specification["added_tokens"].append(specification["added_tokens"][0] | {"id": 999, "content": "Control"})
    vocabulary = BpeVocabulary(specification)
    assert vocabulary.control_ids.isdisjoint(vocabulary.encode("Control"))
    assert "Control" == vocabulary.decode(vocabulary.encode("Control"))


def without(specification: dict[str, Any], characters: str) -> dict[str, Any]:
    model = specification["model"]
    vocab = {token: token_id for token, token_id in model["vocab"].items() if not set(token) & set(characters)}
    merges = [pair for pair in model["merges"] if not set("".join(pair)) & set(characters)]
    return specification | {"model": model | {"vocab": vocab, "merges": merges, "unk_token": "<|endoftext|>"}}


def test_characters_without_tokens_stay_visible(tokenizer_json: str) -> None:
    vocabulary = BpeVocabulary(without(json.loads(tokenizer_json), "Ąñ"))  # the bytes 0x04 and 0xf1
    assert "a\ufffdb\ufffdc" == vocabulary.decode(vocabulary.encode("a\x04b\U00040000c"))
    assert b"" == vocabulary.pieces[json.loads(tokenizer_json)["model"]["vocab"]["Ą"]]


def test_a_vocabulary_without_the_replacement_character_is_refused(tokenizer_json: str) -> None:
    with pytest.raises(ValueError, match=r"U\+FFFD"):
        BpeVocabulary(without(json.loads(tokenizer_json), "ï"))


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"type": "Unigram", "vocab": []}},
        {"decoder": {"type": "WordPiece"}},
        {"decoder": None},
        {"model": {}},
    ],
)
def test_other_kinds_are_refused(tmp_path: Path, tokenizer_json: str, change: dict[str, Any]) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(tokenizer_json) | change), encoding="utf-8")
    with pytest.raises(ValueError, match="is not a byte-level BPE tokenizer"):
        BpeVocabulary.from_file(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", "{", "\xff"])
def test_files_that_are_no_tokenizer_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match="is not a byte-level BPE tokenizer"):
        BpeVocabulary.from_file(path)


def test_long_text_is_encoded_as_short_text_is(bpe: BpeVocabulary) -> None:
    words = [f" word{number} naïve 北京" for number in range(1000)]
    text = "".join(words)

    assert len(text) > 4_000
    assert text == bpe.decode(bpe.encode(text))
    assert [token_id for word in words for token_id in bpe.encode(word)] == bpe.encode(text)
