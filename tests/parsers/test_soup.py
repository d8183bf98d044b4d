"""Any tokens in any order: never an error, never a control token's name, never a call that is not JSON."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

WORDS: list[Any] = [
    *[[word] for word in ("open", "close", "sep", "end_of_msg", "[EOS]", "<|media_pad|>", "[PAD]")],
    *[["open", tag, "sep"] for tag in ("think", "response", "tools", "json", 'json type="object"', "final", "message")],
    *[["close", tag, "sep"] for tag in ("think", "response", "tools", "call", "argument", "json", "message")],
    *[["open", f'call tool="{name}" index="1"', "sep"] for name in ("f", "g&quot;", "")],
    *[["open", f'argument key="{key}" type="{tag}"', "sep"] for key in "ab" for tag in ("string", "number", "object", "any")],
    *["think", "response", "call", " ", "\n", "<", "<|", "|>", 'x="', '"', "\\", "é", "text"],
    *["{", "}", '{"a": ', "[1, ", "]", "1", ","],
    *["<|sep|>", "<|open|>", "<|close|>think<|sep|>", "<|open|>response<|sep|>", '<|open|>call tool="f"<|sep|>'],
    *[{"bytes": part} for part in ("f09f", "98", "c3", "ff")],
]
PIECES = st.lists(st.sampled_from(WORDS), max_size=30)
REASONS = st.sampled_from(["stop", "length", "abort"])


def check(events: list[list[Any]], reason: str) -> None:
    """What holds of every answer."""
    state: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for word in events[:-1]:
        kind, index = word[0], word[1]
        if kind == "call":
            assert index == len(state)
            assert "open" not in state.values(), "two calls at once"
            state[index], arguments[index] = "open", ""
        elif kind == "arguments":
            assert state[index] == "open"
            arguments[index] += word[2]
        elif kind in ("end", "cut"):
            assert state[index] == "open"
            state[index] = kind
            if kind == "end":
                assert isinstance(orjson.loads(arguments[index]), dict)
        else:
            assert kind in ("reasoning", "content")
    assert "open" not in state.values()
    finish = "length" if reason == "length" else "tool_calls" if "end" in state.values() else "stop"
    assert ["finish", finish] == events[-1]


@given(pieces=PIECES, thinking=st.booleans(), reason=REASONS, data=st.data())
@settings(max_examples=600, deadline=None)
def test_words_in_any_order(byte: Any, pieces: list[Any], thinking: bool, reason: str, data: st.DataObject) -> None:
    token_ids = byte.write(*pieces)
    parser = byte.parser(thinking=thinking)
    expected = byte.read(parser, [[token_id] for token_id in token_ids], reason)
    check(expected, reason)
    assert 0 <= parser.num_reasoning_tokens <= len(token_ids)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(token_ids)), max_size=6)))
    steps = [token_ids[start:end] for start, end in zip([0, *cuts], [*cuts, len(token_ids)], strict=True)]
    again = byte.parser(thinking=thinking)
    assert expected == byte.read(again, steps, reason)
    assert parser.recoveries == again.recoveries
    assert parser.num_reasoning_tokens == again.num_reasoning_tokens


@given(token_ids=st.lists(st.integers(-2, 600) | st.integers(256, 262), max_size=60), thinking=st.booleans(), reason=REASONS)
@settings(max_examples=200, deadline=None)
def test_ids_in_any_order(byte: Any, token_ids: list[int], thinking: bool, reason: str) -> None:
    expected = byte.read(byte.parser(thinking=thinking), [token_ids], reason)
    check(expected, reason)
    assert expected == byte.read(byte.parser(thinking=thinking), [[token_id] for token_id in token_ids], reason)


@given(data=st.data(), thinking=st.booleans())
@settings(max_examples=200, deadline=None)
def test_no_control_token_becomes_text(byte: Any, data: st.DataObject, thinking: bool) -> None:
    """No ordinary token has `<`, `|` or `[` here: where one comes out, it is from a control token's name."""
    ordinary = st.sampled_from(list(b'think response tools call tool="a" index argument key="k" type="number" : , 1 {'))
    control = st.sampled_from(sorted(byte.vocabulary.control_ids))
    marker = st.sampled_from(byte.write(["open", "close", "sep"]))
    token_ids = data.draw(st.lists(ordinary | control | marker, max_size=50))
    for kind, *_, text in byte.read(byte.parser(thinking=thinking), [token_ids]):
        if kind in ("reasoning", "content", "call", "arguments"):
            assert not set("<|[") & set(str(text))
