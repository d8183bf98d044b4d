"""The JSON automaton: whatever it is given, what it sends is, or becomes, valid JSON."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.parsers.json_stream import MAX_DEPTH, MAX_WORD_LENGTH, JsonStream

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=15,
)
PARTS = ["{", "}", "[", "]", '"', '"a"', ":", ",", " ", "1", "-", "true", "None", "\\u", "\\ud83d", "\\ude00", "\\n", "x"]
CHARACTERS = '{}[]",:\\ \n\tabtrufalsenl0123456789-+.eEuxD8\x01é😀'
SOUP = st.text(CHARACTERS, max_size=40) | st.lists(st.sampled_from(PARTS), max_size=25).map("".join)


def stream(text: str, size: int) -> tuple[str, JsonStream]:
    """All that is sent of `text` in steps of `size` characters, and the stream at its end."""
    json_stream = JsonStream()
    sent = [json_stream.feed(text[start : start + size]) for start in range(0, len(text), size)]
    return "".join([*sent, json_stream.close()]), json_stream


@given(value=VALUES, indent=st.none() | st.integers(0, 3), ascii_only=st.booleans(), size=st.integers(1, 20))
@settings(max_examples=150, deadline=None)
def test_valid_json_passes_unchanged(value: object, indent: int | None, ascii_only: bool, size: int) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    sent, json_stream = stream(text, size)
    assert text == sent
    assert json_stream.whole
    assert not json_stream.faulty


@given(text=SOUP, size=st.integers(1, 10))
@settings(max_examples=500, deadline=None)
def test_soup_becomes_valid_json_or_nothing(text: str, size: int) -> None:
    sent, json_stream = stream(text, size)
    assert sent == stream(text, len(text) + 1)[0]
    if sent:
        json.loads(sent)
        orjson.loads(sent)  # stricter: no lone surrogates
    assert bool(sent) == json_stream.written
    assert json_stream.faulty or text.strip(" \t\n\r") == sent


@given(value=VALUES.filter(lambda value: isinstance(value, (list, dict))), data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_prefix_of_valid_json_is_completed(value: object, data: st.DataObject) -> None:
    text = json.dumps(value)
    cut = text[: data.draw(st.integers(0, len(text)))]
    json_stream = JsonStream()
    sent = json_stream.feed(cut)
    assert text.startswith(sent)
    if sent:
        assert type(value) is type(json.loads(sent + json_stream.close()))


@pytest.mark.parametrize("depth", [MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, 100_000])
def test_depth_is_bounded(depth: int) -> None:
    sent, json_stream = stream("[1," * depth, 64)
    assert (depth > MAX_DEPTH) == (sent.count("[") < depth)
    assert sent.count("[") == sent.count("]") <= MAX_DEPTH
    assert json_stream.faulty


@pytest.mark.parametrize("character", ["1", "a", " ", "["])
def test_what_is_held_back_is_bounded(character: str) -> None:
    json_stream = JsonStream()
    for _ in range(200):
        json_stream.feed("[ " + character * 100)
    held = len(json_stream._ahead) + len(json_stream._word) + len(json_stream._stack)
    assert held <= 2 * MAX_WORD_LENGTH + 100


def test_strings_are_sent_character_by_character() -> None:
    json_stream = JsonStream()
    steps = [
        ('["', '["'),
        ("a", "a"),
        ("é", "é"),
        ("\\", ""),
        ("n", "\\n"),
        ("\\ud83d", ""),
        ("\\ude00", "\\ud83d\\ude00"),
        ("b", "b"),
    ]
    assert [sent for _, sent in steps] == [json_stream.feed(text) for text, _ in steps]
    assert '"]' == json_stream.close()
