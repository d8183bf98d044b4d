"""The files that the scripted engine is made of: its vocabulary and its script.

Role: from the settings to what `engine.py` plays; read before anything is served, and by `check-config`. Invariant: what is wrong
with a file is said of the setting that names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from server.engine.scripted.rules import Script
from server.engine.scripted.script import read_script
from server.sections import EngineSettings
from server.vocabulary.base import Vocabulary
from server.vocabulary.byte import ByteVocabulary
from server.vocabulary.load import load


def read_files(settings: EngineSettings) -> tuple[Vocabulary, Script]:
    """What `settings` names, or bytes and no rules. Raises `ValueError` for what can't be read or has mistakes."""
    with _said_of("engine.vocab"):
        vocabulary = load(settings.vocab) if settings.vocab else ByteVocabulary()
    with _said_of("engine.script"):
        return vocabulary, read_script(settings.script, vocabulary) if settings.script else Script()


@contextmanager
def _said_of(setting: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise ValueError(f"{setting}: {error}") from error
