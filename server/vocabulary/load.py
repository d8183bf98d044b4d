"""Which vocabulary a model has, by the files in its folder."""

from __future__ import annotations

from pathlib import Path

from server.vocabulary.base import Vocabulary
from server.vocabulary.bpe_json import BpeVocabulary
from server.vocabulary.tiktoken_file import KimiVocabulary


def load(path: Path) -> Vocabulary:
    """The vocabulary at `path`, a model's folder or the file itself.

    `tiktoken.model` (any `.model`) is Kimi K3's, `tokenizer.json` (any `.json`) is byte-level BPE; a folder with both is K3's.
    Raises `FileNotFoundError` where there is none, `ValueError` where the file is not what its name says.
    """
    file = find(path)
    if file.suffix == ".model":
        return KimiVocabulary.from_file(file)
    if file.suffix == ".json":
        return BpeVocabulary.from_file(file)
    raise ValueError(f"`{file}` is neither a `.model` nor a `.json` file")


def find(path: Path) -> Path:
    """The file of the vocabulary at `path`. Raises `FileNotFoundError`."""
    if path.is_dir():
        for name in ("tiktoken.model", "tokenizer.json"):
            if (path / name).is_file():
                return path / name
        raise FileNotFoundError(f"`{path}` has neither a `tiktoken.model` nor a `tokenizer.json`")
    if not path.is_file():
        raise FileNotFoundError(f"`{path}` does not exist: give a model's folder, its `tiktoken.model` or its `tokenizer.json`")
    return path
