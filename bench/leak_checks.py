"""What must be left when all requests have ended: nothing, and the same sums wherever anything was counted.

Role: looks at one gateway after its requests, and at their rows in the ledger. Invariant: every check names what it found.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from bench.leak_load import CountingEngine, Got
from server.admission.fair_queue import FairQueue
from server.admission.limits import Four
from server.admission.memory import MemoryHold
from server.admission.place import Place
from server.admission.redis_hold import RedisHold
from server.admission.ticket import Ticket
from server.choice import Choice
from server.gateway import Gateway
from server.generation import Generation
from server.models import Price
from server.streaming.answers import OpenAnswer

MAX_TOLD: Final = 5
HELD: Final = (Generation, Choice, Place, Ticket, MemoryHold, RedisHold, OpenAnswer)
"""What a request consists of; none may outlive it."""
_WHY: Final = {
    200: {"finished"},
    400: {"invalid"},
    403: {"denied"},
    404: {"invalid"},
    429: {"limited", "over_budget"},
    502: {"invalid_tool_call"},
    503: {"rejected", "engine_dead"},
    504: {"timeout"},
}


class Faults:
    """What was found wrong: a few examples of each kind, and how many there were."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: list[str] = []

    def check(self, kind: str, expected: object, actual: object, where: str = "") -> None:
        """Note that two things differ."""
        if expected != actual:
            self.counts[kind] += 1
            if self.counts[kind] <= MAX_TOLD:
                self.examples.append(f"{kind}{f' of {where}' if where else ''}: expected {expected}, found {actual}")


def count_held() -> Counter[str]:
    """How many of the objects that requests consist of are alive."""
    gc.collect()
    return Counter(type(thing).__name__ for thing in gc.get_objects() if isinstance(thing, HELD))


def check_nothing_left(
    faults: Faults, gateway: Gateway, engine: CountingEngine, others: Iterable[asyncio.Task[Any]], held_before: Counter[str]
) -> None:
    """In the loop that the requests ran on. `others`: tasks that may go on. `held_before`: what `count_held` said before."""
    queue = gateway.queue
    assert queue is not None
    faults.check("open answers", True, gateway.answers.is_empty)
    faults.check("requests in the engine", (0, 0, 0), (engine.num_unfinished, engine.stats.num_running, engine.stats.num_waiting))
    _check_queue(faults, queue)
    tasks = asyncio.all_tasks() - {asyncio.current_task(), *others}
    faults.check("tasks", [], sorted(task.get_name() for task in tasks))
    held = count_held() - held_before
    loop: Any = asyncio.get_running_loop()
    if not others:
        alarms = [repr(alarm) for alarm in loop._scheduled if not alarm.cancelled()]
        faults.check("timers", [], alarms)
        faults.check("generators", [], [repr(generator) for generator in loop._asyncgens])
    faults.check("objects of requests", {}, dict(held))


def _check_queue(faults: Faults, queue: FairQueue) -> None:
    faults.check("places in the queue", 0, queue.num_queued)
    faults.check("seats taken", 0, queue.num_seated)
    for account in queue.accounts:
        faults.check("an account", (True, 0), (account.is_idle, account.at_stake), account.name)


def sums_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Four, Four]]:
    """By tenant: what the minute and what budgets must have counted for these rows; see `server.admission.limits.Standing`."""
    sums: dict[str, tuple[Four, Four]] = {}
    for row in rows:
        num_input, num_output, cost = row["input_tokens"], row["output_tokens"], row["cost_nano_usd"]
        used, spent = sums.get(row["tenant"], ((0, 0, 0, 0), (0, 0, 0, 0)))
        more = (int(num_input > 0), num_input, num_input - row["cached_tokens"], num_output)
        tokens = num_input + num_output
        sums[row["tenant"]] = (
            (used[0] + more[0], used[1] + more[1], used[2] + more[2], used[3] + more[3]),
            (spent[0] + tokens, spent[1] + tokens, spent[2] + cost, spent[3] + cost),
        )
    return sums


def check_rows(
    faults: Faults,
    gots: Sequence[Got],
    rows: Sequence[Mapping[str, Any]],
    engine: CountingEngine,
    prices: Mapping[str, set[Price]],
) -> None:
    """One row for each request, with the engine's counts, at a price that was set, telling what its client was told."""
    faults.check("ids of rows", len(rows), len({row["id"] for row in rows}))
    by_request = Counter(row["request_id"] for row in rows)
    for got in gots:
        faults.check("rows of a request", 1, by_request.pop(got.ask.request_id, 0), _of(got))
    faults.check("rows of nobody", {}, dict(by_request))
    of_request = {row["request_id"]: row for row in rows}
    for row in rows:
        where = f"{row['request_id']} ({row['outcome']})"
        asked = engine.asked.get(row["request_id"], [])
        taken = [one for one in asked if one.was_taken]
        generated = sum(one.num_output_tokens for one in asked)
        faults.check("generated tokens", generated, row["output_tokens"] + row["discarded_tokens"], where)
        faults.check("input tokens", taken[0].num_prompt_tokens if taken else 0, row["input_tokens"], where)
        faults.check("cached tokens", engine.first_cached.get(row["request_id"], 0), row["cached_tokens"], where)
        counts = (row["input_tokens"], row["cached_tokens"], row["output_tokens"])
        costs = {price.nano_usd(*counts) for price in prices.get(row["model"], {Price()})}
        faults.check("cost is of a price", True, row["cost_nano_usd"] in costs, where)
    for got in gots:
        if (told := of_request.get(got.ask.request_id)) is not None:
            _check_client(faults, got, told["outcome"])


def _check_client(faults: Faults, got: Got, outcome: str) -> None:
    """Who stays is told how it ended; who has a whole answer is not called cancelled."""
    ends_itself = got.ask.ending in ("stays", "stalls")
    if ends_itself:
        faults.check("whole responses", True, got.is_whole, _of(got))
    if got.is_answer:
        faults.check("outcome of a whole answer", "finished", outcome, _of(got))
    elif got.is_whole and got.status == 200:
        faults.check("outcome of a broken stream", False, outcome in ("finished", "cancelled"), f"{_of(got)}: {outcome}")
    elif got.is_whole:
        known = _WHY.get(got.status, {"error", "invalid"})
        faults.check(f"outcome of status {got.status}", True, outcome in known, f"{_of(got)}: {outcome}")


Samples = Mapping[str, Counter[tuple[str, ...]]]


def samples_of(gateway: Gateway) -> Samples:
    """What a scrape shows: name -> values of its labels, in the order of the labels' names -> value."""
    found: dict[str, Counter[tuple[str, ...]]] = {}
    for family in text_string_to_metric_families("".join(gateway.recorder.pieces())):
        for sample in family.samples:
            found.setdefault(sample.name, Counter())[tuple(value for _, value in sorted(sample.labels.items()))] += int(
                sample.value
            )
    return found


def check_metrics(faults: Faults, found: Samples, rows: Sequence[Mapping[str, Any]]) -> None:
    """The metrics of a gateway that had these requests add up to their rows."""
    requests: Counter[tuple[str, ...]] = Counter()
    tokens: Counter[tuple[str, ...]] = Counter()
    for row in rows:
        requests[row["api"], row["model"], row["outcome"], row["tenant"]] += 1
        for kind, name in (
            ("input", "input_tokens"), ("cached_input", "cached_tokens"), ("output", "output_tokens"),
            ("reasoning", "reasoning_tokens"), ("discarded", "discarded_tokens"),
        ):  # fmt: skip
            tokens[kind, row["model"], row["tenant"]] += row[name]
    faults.check("requests in metrics", +requests, +found.get("k3gw_requests_total", Counter()))
    faults.check("tokens in metrics", +tokens, +found.get("k3gw_tokens_total", Counter()))
    for gauge in ("k3gw_inflight_requests", "k3gw_queued_requests"):
        faults.check(gauge, {}, {labels: value for labels, value in found.get(gauge, Counter()).items() if value})


def _of(got: Got) -> str:
    return f"{got.ask.request_id} ({got.ask.ending} {got.ask.when:g}, status {got.status})"
