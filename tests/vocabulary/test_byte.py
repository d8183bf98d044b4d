from __future__ import annotations

from server.vocabulary.byte import ByteVocabulary
from server.vocabulary.tiktoken_file import KimiVocabulary


def test_bytes_are_their_own_ids() -> None:
    assert [0x61, 0xC3, 0xA9] == ByteVocabulary().encode("aé")


def test_control_tokens_are_those_of_k3(synthetic_k3: KimiVocabulary) -> None:
    vocabulary = ByteVocabulary()
    named = {name for name in synthetic_k3.control if "reserved_token" not in name}
    assert named == {name for name in vocabulary.control if "reserved_token" not in name}
    assert list(range(256, 512)) == sorted(vocabulary.control_ids)
