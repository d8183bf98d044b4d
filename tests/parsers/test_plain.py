"""The parser without channels, and the choice of a parser."""

from __future__ import annotations

from typing import Any

import pytest

from server.events import ContentDelta, Finish, FinishReason
from server.parsers.factory import FORMATS, ParserFactory
from server.parsers.kimi_k3 import KimiK3Parser
from server.parsers.plain import PlainParser


def test_text_passes_and_control_tokens_vanish(pen: Any) -> None:
    token_ids = pen.write("naïve <|close|> 👩‍🔬", ["close", "[EOS]"], "!", ["end_of_msg"])
    for steps in ([token_ids], [[token_id] for token_id in token_ids]):
        parser = ParserFactory("plain", pen.vocabulary).make()
        assert [["content", "naïve <|close|> 👩‍🔬!"], ["finish", "stop"]] == pen.read(parser, steps)
        assert (0, {}) == (parser.num_reasoning_tokens, parser.recoveries)


@pytest.mark.parametrize(("reason", "finish"), [("stop", "stop"), ("abort", "stop"), ("length", "length")])
def test_an_incomplete_character_becomes_one_replacement(byte: Any, reason: str, finish: str) -> None:
    parser = ParserFactory("plain", byte.vocabulary).make()
    assert [] == parser.feed(byte.write({"bytes": "f09f98"}))
    assert [ContentDelta("\ufffd"), Finish(FinishReason(finish))] == parser.finish(reason)


def test_unknown_ids_are_dropped(byte: Any) -> None:
    parser = ParserFactory("plain", byte.vocabulary).make()
    assert [ContentDelta("ab")] == parser.feed([97, -1, 10**9, 98])


def test_formats(byte: Any) -> None:
    assert {"kimi_k3": KimiK3Parser, "plain": PlainParser} == {
        name: type(ParserFactory(name, byte.vocabulary).make()) for name in FORMATS
    }
    with pytest.raises(ValueError, match="`k4` is not a format: use one of kimi_k3, plain"):
        ParserFactory("k4", byte.vocabulary)


def test_kimi_k3_needs_its_control_tokens(byte: Any) -> None:
    class Other(type(byte.vocabulary)):  # type: ignore[misc]
        control = {"<|open|>": 256}  # noqa: RUF012

    with pytest.raises(ValueError, match=r"no control token `<\|close\|>`"):
        ParserFactory("kimi_k3", Other())


def test_parsers_of_two_factories_share_nothing(byte: Any) -> None:
    class Shouting(type(byte.vocabulary)):  # type: ignore[misc]
        @property
        def pieces(self) -> list[bytes]:
            return [piece.upper() for piece in super().pieces]

    one, other = ParserFactory("plain", byte.vocabulary), ParserFactory("plain", Shouting())
    assert [[ContentDelta("a")], [ContentDelta("A")]] == [one.make().feed([97]), other.make().feed([97])]
