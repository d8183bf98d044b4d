"""Rows of the ledger, held against what the engine knows."""

from __future__ import annotations

from typing import Any

from tests.wire.customers import Customer, House


def check_row(house: House, customer: Customer, outcome: str, finish_reason: str | None = None) -> dict[str, Any]:
    """The one row of the tenant's one request, held against what the engine knows of it; nothing is left of the request."""
    (row,) = house.rows(customer, 1)
    made = customer.at_engine()
    counts = (row["input_tokens"], row["cached_tokens"], row["output_tokens"])
    num_input = len(made[0]["token_ids"]) if made else 0
    num_cached = made[0]["num_cached_tokens"] if made else 0
    num_output = sum(entry["num_generated_tokens"] for entry in made)
    assert (num_input, num_cached, num_output) == counts
    femto = (num_input - num_cached) * 3 * 10**9 + num_cached * 3 * 10**8 + num_output * 15 * 10**9
    assert -(-femto // 10**6) == row["cost_nano_usd"]
    assert (outcome, finish_reason) == (row["outcome"], row["finish_reason"])
    assert (row["api"], row["key_id"]) == ("chat", customer.key_id)
    times = [row[name] for name in ("arrived_unix_ms", "admitted_unix_ms", "first_token_unix_ms", "ended_unix_ms")]
    happened = [time for time in times if time is not None]
    assert happened == sorted(happened)
    assert (bool(made), bool(num_output)) == (times[1] is not None, times[2] is not None)
    assert all(entry["end"] is not None for entry in made)
    inner = house.gateway.gateway
    account = inner.queue.accounts.get(customer.name)
    assert inner.limits.num_running(customer.name) == 0
    assert account is None or account.is_idle
    return row


def check_refused(house: House, customer: Customer, num_rows: int, outcome: str, num_asked: int | None = None) -> None:
    """The last row is of a request that the engine never saw."""
    row = house.rows(customer, num_rows)[-1]
    assert (row["outcome"], row["finish_reason"], row["admitted_unix_ms"], row["first_token_unix_ms"]) == (
        outcome,
        None,
        None,
        None,
    )
    assert (row["input_tokens"], row["output_tokens"], row["cost_nano_usd"]) == (0, 0, 0)
    assert len(customer.at_engine()) == (num_rows - 1 if num_asked is None else num_asked)
