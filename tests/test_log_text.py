"""What of an error may stand in the log."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.log_text import MAX_CHARS, cause_text, without_values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the engine failed on this request", "the engine failed on this request"),
        ("it can't be; don't", "it can't be; don't"),
        ("`messages[0].role` is `secret`; send another", "`messages[0].role` is …; send another"),
        ("`tools[1].function.parameters`: no `a`, no `b`.", "`tools[1].function.parameters`: no ….",),
        ("`messages[0].secret` is missing", "… is missing"),
        ("there is no model `secret`", "there is no model …"),
        ("invalid value 'secret' - at `$.n`", "invalid value …"),
        ("'secret'", "…"),
        ('Expecting "secret", got “secret”: no', "Expecting …: no"),
        ("cut off in `secr", "cut off in …"),
        ("can't read 'secret'", "can't read …"),
        ("", ""),
    ],
)  # fmt: skip
def test_what_stands_between_quotes_is_left_out(text: str, expected: str) -> None:
    assert expected == without_values(text)


@given(st.text(alphabet=string.printable + "`“”…é", max_size=80), st.sampled_from("`'\""))
def test_a_value_with_quotes_of_its_own_is_left_out_whole(inside: str, quote: str) -> None:
    value = f"xCANARYx{inside}xCANARYx"

    assert "CANARY" not in without_values(f"`temperature`: the value {quote}{value}{quote} is none; send a number")


def test_a_long_message_is_cut() -> None:
    assert MAX_CHARS >= len(without_values("a" * 10_000))
    assert "CANARY" not in without_values("`" + "a" * 10_000 + "CANARY`")


def test_a_cause_says_where_it_came_from_and_not_what_it_held() -> None:
    word = "CAN" + "ARY"  # a traceback has the lines of this file
    try:
        try:
            {}[word]
        except KeyError as error:
            raise ExceptionGroup(f"two of '{word}'", [ValueError(f"no “{word}”"), OSError(2, "is away", word)]) from error
    except ExceptionGroup as caught:
        text = cause_text(caught)

    assert word not in text
    assert [True] * 4 == [name in text for name in ("KeyError", "ExceptionGroup", "ValueError: no …", "FileNotFoundError")]
    assert text.index("KeyError") < text.index("ExceptionGroup")
    assert __file__ in text


def test_a_chain_that_bites_its_tail_ends() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first

    assert 2 == cause_text(first).count("ValueError")
