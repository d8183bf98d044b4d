"""What holds for every vocabulary."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.vocabulary.base import Vocabulary

SEEDED = settings(derandomize=True, deadline=None, max_examples=60)
TEXTS = st.lists(
    st.one_of(st.text(max_size=20), st.sampled_from(["<|open|>", "<|close|>", "<|sep|>", "[EOS]", "👩‍🚀", "北京"]))
).map("".join)


@SEEDED
@given(text=TEXTS)
def test_text_survives(vocabulary: Vocabulary, text: str) -> None:
    assert text == vocabulary.decode(vocabulary.encode(text))


@SEEDED
@given(text=TEXTS)
def test_text_is_never_a_control_token(vocabulary: Vocabulary, text: str) -> None:
    assert vocabulary.control_ids.isdisjoint(vocabulary.encode(text))


def test_the_name_of_a_control_token_is_text(vocabulary: Vocabulary) -> None:
    for name in vocabulary.control:
        assert vocabulary.control_ids.isdisjoint(vocabulary.encode(name)), name
        assert name == vocabulary.decode(vocabulary.encode(name))


def test_tables_agree(vocabulary: Vocabulary) -> None:
    assert vocabulary.size == len(vocabulary.pieces)
    assert vocabulary.control_ids == set(vocabulary.control.values())
    for name, token_id in vocabulary.control.items():
        assert name.encode() == vocabulary.pieces[token_id]
        assert name == vocabulary.decode([token_id])


def test_pieces_are_what_is_decoded(vocabulary: Vocabulary) -> None:
    token_ids = [*vocabulary.encode("the cat, 北京"), vocabulary.control["<|close|>"], *vocabulary.encode("é")]
    assert "the cat, 北京<|close|>é" == b"".join(vocabulary.pieces[token_id] for token_id in token_ids).decode()


def test_half_a_character_decodes_to_a_replacement(vocabulary: Vocabulary) -> None:
    byte_f0 = vocabulary.pieces.index(b"\xf0")
    assert "\ufffda" == vocabulary.decode([byte_f0, *vocabulary.encode("a")])


@pytest.mark.parametrize(("text", "read_as"), [("a\ud800b", "a\ufffdb"), ("\udfff", "\ufffd"), ("\ud83d\ude00", "😀")])
def test_surrogates_do_not_crash(vocabulary: Vocabulary, text: str, read_as: str) -> None:
    assert read_as == vocabulary.decode(vocabulary.encode(text))


def test_empty_text_has_no_tokens(vocabulary: Vocabulary) -> None:
    assert [] == vocabulary.encode("")
    assert "" == vocabulary.decode([])


def test_threads_may_share_it(vocabulary: Vocabulary) -> None:
    texts = [f"the cat {number} sat " * 200 for number in range(8)]
    expected = [vocabulary.encode(text) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert expected * 4 == list(pool.map(vocabulary.encode, texts * 4))


@SEEDED
@given(text=TEXTS, most=st.integers(0, 30))
def test_encoding_may_end_where_there_is_enough(vocabulary: Vocabulary, text: str, most: int) -> None:
    whole, bounded = vocabulary.encode(text), vocabulary.encode(text, most)
    assert whole == bounded or len(bounded) > most


@SEEDED
@given(text=TEXTS)
def test_no_text_has_fewer_tokens_than_its_size_says(vocabulary: Vocabulary, text: str) -> None:
    assert len(text.encode()) <= vocabulary.longest_piece * len(vocabulary.encode(text))


def test_a_long_text_is_not_encoded_to_its_end(vocabulary: Vocabulary) -> None:
    text = "one two three " * 100_000
    assert 10 < len(vocabulary.encode(text, 10)) < len(vocabulary.encode(text)) / 2
