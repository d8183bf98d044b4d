"""The last quarter of an hour: what of it is kept, and what a page is given."""

from __future__ import annotations

from server.clock import ManualClock
from server.dashboard.history import INTERVAL_S, KEPT_S, RATE_S, RATIO_S, History
from server.dashboard.points import COLUMNS, Counts, Figure

TOKENS, HITS = COLUMNS.index("output_tokens_per_s"), COLUMNS.index("cache_hit_ratio")


class Played:
    """A history over counts that a test sets."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.counts = Counts()
        self.history = History(lambda: self.counts, self.clock)

    def go(self, num_points: int, interval_s: float = INTERVAL_S) -> None:
        for _ in range(num_points):
            self.history.sample()
            self.clock.advance(interval_s)

    def last(self, column: int) -> Figure:
        return self.history.since(0)[1][-1][column]


def test_a_page_is_given_what_it_does_not_have() -> None:
    played = Played()
    played.go(5)
    number, points = played.history.since(0)
    assert (5, 5) == (number, len(points))
    assert (5, []) == played.history.since(number)
    played.go(2)
    newer = played.history.since(number)
    assert (7, 2) == (newer[0], len(newer[1]))
    assert [1_000_010.0, 1_000_012.0] == [point[0] for point in newer[1]]
    assert (7, []) == played.history.since(1_000), "a number of a gateway that ran for longer"


def test_no_more_is_kept_than_a_quarter_of_an_hour() -> None:
    played = Played()
    num_kept = round(KEPT_S / INTERVAL_S)
    played.go(3 * num_kept)
    number, points = played.history.since(0)

    assert (3 * num_kept, num_kept) == (number, len(points))
    assert points[-num_kept:] == played.history.since(number - num_kept)[1]
    assert len(played.history._samples) <= RATIO_S / INTERVAL_S + 2


def test_a_rate_is_of_the_last_seconds() -> None:
    played = Played()
    played.go(60)
    played.counts = Counts(num_output_tokens=1000)
    for ago in range(round(RATE_S / INTERVAL_S)):
        played.go(1)
        assert 1000 / RATE_S == played.last(TOKENS), f"{ago} samples after it"
    played.go(1)
    assert 0 == played.last(TOKENS)


def test_a_ratio_is_of_the_last_minute() -> None:
    played = Played()
    played.go(60)
    played.counts = Counts(num_prefix_queried_tokens=100, num_prefix_hit_tokens=75)
    played.go(round(RATIO_S / INTERVAL_S))
    assert 0.75 == played.last(HITS)
    played.go(1)
    assert played.last(HITS) is None


def test_after_a_standstill_a_rate_is_of_the_time_that_went_by() -> None:
    played = Played()
    played.go(3)
    played.clock.advance(98.0)
    played.counts = Counts(num_output_tokens=1000)
    played.go(1)

    assert 10.0 == played.last(TOKENS)
