"""Durations as people write them."""

from __future__ import annotations

import pytest

from server.durations import seconds_of


@pytest.mark.parametrize(("text", "seconds"), [("0s", 0), ("30s", 30), ("15m", 900), ("24h", 86400), ("90d", 7_776_000)])
def test_a_number_and_a_unit(text: str, seconds: int) -> None:
    assert seconds == seconds_of(text)


@pytest.mark.parametrize(
    "text", ["", "7", "d", "7 d", "-7d", "1.5h", "7w", "7D", "٧d", "7d\n", "1h30m", "9" * 30 + "d", "999999d"]
)
def test_anything_else_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no duration|longer than a century"):
        seconds_of(text)


def test_nothing_is_no_lifetime() -> None:
    assert 1 == seconds_of("1s", least=1)
    with pytest.raises(ValueError, match="`0d` is shorter than 1 s; write a longer duration"):
        seconds_of("0d", least=1)
