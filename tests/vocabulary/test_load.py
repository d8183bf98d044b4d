from __future__ import annotations

from pathlib import Path

import pytest

from server.vocabulary.bpe_json import BpeVocabulary
from server.vocabulary.load import load
from server.vocabulary.tiktoken_file import KimiVocabulary


def test_a_folder_with_a_merge_table_is_k3s(tmp_path: Path, merge_table: bytes, tokenizer_json: str) -> None:
    (tmp_path / "tiktoken.model").write_bytes(merge_table)
    (tmp_path / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
    # K2's names for K3's ids
    (tmp_path / "tokenizer_config.json").write_text(
        '{"added_tokens_decoder": {"163587": {"content": "<|im_user|>"}}}', encoding="utf-8"
    )
    vocabulary = load(tmp_path)
    assert isinstance(vocabulary, KimiVocabulary)
    assert b"<|open|>" == vocabulary.pieces[163587]


def test_a_folder_with_a_tokenizer_json(tmp_path: Path, tokenizer_json: str) -> None:
    (tmp_path / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
    assert isinstance(load(tmp_path), BpeVocabulary)
    assert isinstance(load(tmp_path / "tokenizer.json"), BpeVocabulary)


def test_a_file_by_its_own_name(tmp_path: Path, merge_table: bytes) -> None:
    path = tmp_path / "other.model"
    path.write_bytes(merge_table)
    assert isinstance(load(path), KimiVocabulary)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"neither a `tiktoken\.model` nor a `tokenizer\.json`"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load(tmp_path / "tiktoken.model")


def test_another_kind_of_file(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("a", encoding="utf-8")
    with pytest.raises(ValueError, match=r"neither a `\.model` nor a `\.json` file"):
        load(path)
