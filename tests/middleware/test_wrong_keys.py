"""The brake on wrong keys: whom it counts together, and what it remembers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.clock import ManualClock
from server.middleware.wrong_keys import (
    ADDRESS_BURST,
    ADDRESS_INTERVAL_S,
    ALL_BURST,
    ALL_INTERVAL_S,
    MAX_ADDRESSES,
    WrongKeys,
    network_of,
)


class Brake:
    """A brake and a list of the times at which something had to wait."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.num_waits = 0
        self.keys = WrongKeys(self.clock, wait=self._wait)

    async def _wait(self, _: float) -> None:
        self.num_waits += 1

    async def waits(self, address: str) -> bool:
        before = self.num_waits
        await self.keys.pause(address)
        return self.num_waits > before


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2::9", "2001:db8:1:2::"),
        ("2001:db8:1:3::9", "2001:db8:1:3::"),
        ("fe80::1%eth0", "fe80::"),
        ("::ffff:198.51.100.7", "198.51.100.7"),
        ("", ""),
        ("no:address", "no:address"),
    ],
)
def test_a_client_is_its_network(address: str, network: str) -> None:
    assert network_of(address) == network


async def test_many_addresses_are_braked_together() -> None:
    brake = Brake()

    assert [await brake.waits(f"10.0.{n // 250}.{n % 250}") for n in range(ALL_BURST + 5)] == [False] * ALL_BURST + [True] * 5


async def test_a_bounded_number_of_addresses_is_remembered_the_latest() -> None:
    brake = Brake()
    for n in range(MAX_ADDRESSES + 500):
        await brake.keys.pause(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}")

    remembered = list(brake.keys._due_s)
    assert len(remembered) == MAX_ADDRESSES
    assert remembered[-1] == f"10.{(MAX_ADDRESSES + 499) >> 16}.{(MAX_ADDRESSES + 499) >> 8 & 255}.{(MAX_ADDRESSES + 499) & 255}"


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.floats(0, 3)), max_size=400))
async def test_what_passes_at_once_is_bounded_in_every_window(asked: list[tuple[str, float]]) -> None:
    brake = Brake()
    passed: dict[str, list[float]] = {"a": [], "b": []}
    for address, later_s in asked:
        brake.clock.advance(later_s)
        if not await brake.waits(address):
            passed[address].append(brake.clock.monotonic_s())

    for times, burst, interval_s in (
        *((times, ADDRESS_BURST, ADDRESS_INTERVAL_S) for times in passed.values()),
        (sorted(passed["a"] + passed["b"]), ALL_BURST, ALL_INTERVAL_S),
    ):
        for first in range(len(times)):
            for last in range(first, len(times)):
                assert last - first + 1 <= burst + (times[last] - times[first]) / interval_s + 0.01
