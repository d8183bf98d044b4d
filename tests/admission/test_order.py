"""Orders of accounts, against sorting them."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from server.admission.order import HotPrefixes, Order, Standing
from server.admission.place import Account


@pytest.mark.parametrize("seed", range(20))
def test_the_first_is_the_least_whatever_moves(seed: int) -> None:
    draw = random.Random(seed)
    standing = Standing()
    accounts = [Account(str(number), 1.0, draw.randrange(5)) for number in range(12)]
    heads: dict[Account, Any] = {}
    for step in range(2000):
        account = draw.choice(accounts)
        action = draw.randrange(5)
        if action == 0 or (account not in standing and action < 3):
            heads[account] = SimpleNamespace(serial=step)
            standing.put(account, heads[account])
        elif action == 1:
            standing.discard(account)
        elif action == 2:
            account.counter -= draw.randrange(5)
            standing.put(account, heads[account])
        else:
            account.counter += draw.randrange(5)
        inside = [(of.counter, heads[of].serial, of) for of in accounts if of in standing]
        assert min(inside, default=None, key=lambda entry: entry[:2]) == standing.least()
        assert len(standing._heap) <= 2 * len(accounts) + 65


def test_prefixes_that_were_not_used_for_long_go() -> None:
    hot = HotPrefixes(most=2)
    assert [None, None, None, b"b"] == [hot.add(key) for key in (b"a", b"b", b"a", b"c")]
    assert [True, False, True] == [key in hot for key in (b"a", b"b", b"c")]


def test_of_equal_tenants_the_one_that_came_first_is_next_few_seats_or_many() -> None:
    order = Order(1, 0)
    light, heavy = Account("light", 1.0, 5), Account("heavy", 1.0, 5)
    heavy.num_seated = 1
    for account, serial in ((light, 2), (heavy, 1)):
        account.queue(SimpleNamespace(serial=serial, service_class=1, prefix_key=b""))  # type: ignore[arg-type]
        order.file(account)
    assert heavy is order.next()
    assert light is order.next_light()
    light.counter += 1
    assert order.next_light() is None, "it is ahead, and the other has nothing at stake"
