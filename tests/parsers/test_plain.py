"""The parser without channels, and the choice of a parser."""

from __future__ import annotations

from typing import Any

import pytest

from server.events import ContentDelta, Finish, FinishReason
from server.parsers.factory import FORMATS, make_parser
from server.parsers.kimi_k3 import KimiK3Parser
from server.parsers.plain import PlainParser


def test_text_passes_and_control_tokens_vanish(pen: Any) -> None:
    token_ids = pen.write("naïve <|close|> 👩‍🔬", ["close", "[EOS]"], "!", ["end_of_msg"])
    for steps in ([token_ids], [[token_id] for token_id in token_ids]):
        parser = make_parser("plain", pen.vocabulary)
        assert [["content", "naïve <|close|> 👩‍🔬!"], ["finish", "stop"]] == pen.read(parser, steps)
        assert (0, {}) == (parser.num_reasoning_tokens, parser.recoveries)


@pytest.mark.parametrize(("reason", "finish"), [("stop", "stop"), ("abort", "stop"), ("length", "length")])
def test_an_incomplete_character_becomes_one_replacement(byte: Any, reason: str, finish: str) -> None:
    parser = make_parser("plain", byte.vocabulary)
    assert [] == parser.feed(byte.write({"bytes": "f09f98"}))
    assert [ContentDelta("\ufffd"), Finish(FinishReason(finish))] == parser.finish(reason)


def test_unknown_ids_are_dropped(byte: Any) -> None:
    parser = make_parser("plain", byte.vocabulary)
    assert [ContentDelta("ab")] == parser.feed([97, -1, 10**9, 98])


def test_formats(byte: Any) -> None:
    assert {"kimi_k3": KimiK3Parser, "plain": PlainParser} == {name: type(make_parser(name, byte.vocabulary)) for name in FORMATS}
    with pytest.raises(ValueError, match="`k4` is not a format: use one of kimi_k3, plain"):
        make_parser("k4", byte.vocabulary)


def test_kimi_k3_needs_its_control_tokens(byte: Any) -> None:
    class Other(type(byte.vocabulary)):  # type: ignore[misc]
        control = {"<|open|>": 256}  # noqa: RUF012

    with pytest.raises(ValueError, match=r"no control token `<\|close\|>`"):
        make_parser("kimi_k3", Other())
