"""Whose trace a request belongs to, and which are traced: what clients say of it, and how much they may."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from server.clock import ManualClock
from server.sections import TracingSettings
from server.tracing.otlp import OtlpSink
from server.tracing.sampling import NOBODYS_A_MINUTE, Sampler
from server.tracing.trace import Parent
from server.tracing.tracer import MAX_STATE_CHARS, Tracer
from tests.services.otlp import Collector
from tests.tracing.conftest import SCRIPT
from tests.wire.customers import Customer, House, open_house

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture(scope="module")
def house(collector: Collector, tracing: dict[str, Any]) -> Iterator[House]:
    """Traces only what clients ask for."""
    with open_house(SCRIPT, tracing={**tracing, "sample_ratio": 0, "client_samples_per_minute": 2}) as house:
        yield house


def ask(customer: Customer, **headers: str) -> dict[str, str]:
    """What the engine was told."""
    customer.headers |= headers
    customer.chat()
    told: dict[str, str] = customer.at_engine()[-1]["trace_headers"]
    return told


def test_a_request_belongs_to_its_clients_trace_and_the_engines_work_to_the_request(house: House, collector: Collector) -> None:
    customer = house.tenant()
    told = ask(customer, traceparent=PARENT, tracestate="a=1,b=2")
    trace = collector.trace_of(customer.name, 5)

    assert (TRACE, SPAN, "a=1,b=2") == (trace.root.trace_id, trace.root.parent_id, trace.root.trace_state)
    assert {"traceparent": f"00-{TRACE}-{trace.part('engine').span_id}-01", "tracestate": "a=1,b=2"} == told


def test_clients_get_no_more_traces_than_they_may_ask_for(house: House, collector: Collector) -> None:
    greedy, other = house.tenant(), house.tenant()
    flags = [ask(greedy, traceparent=f"00-{number:032x}-{SPAN}-01")["traceparent"][-2:] for number in range(1, 5)]
    ask(other, traceparent=PARENT)
    collector.trace_of(other.name, 5)

    assert ["01", "01", "00", "00"] == flags
    assert 2 == len(collector.traces(greedy.name))


def test_what_is_not_sampled_is_not_traced_and_the_engine_knows(house: House, collector: Collector) -> None:
    silent, other = house.tenant(), house.tenant()
    told = ask(silent, traceparent=f"00-{TRACE}-{SPAN}-00")
    assert ("00", TRACE) == (told["traceparent"][-2:], told["traceparent"][3:35])
    assert "00" == ask(other)["traceparent"][-2:]
    ask(other, traceparent=PARENT)
    collector.trace_of(other.name, 5)

    assert [] == collector.traces(silent.name)


def begin(*headers: tuple[bytes, bytes]) -> Parent | None:
    settings, clock = TracingSettings(exporter="otlp"), ManualClock()
    return Tracer(settings, clock, OtlpSink(settings, clock)).begin(headers, clock.now_s).parent


@pytest.mark.parametrize(
    "value",
    [
        b"", b"00", b"garbage", PARENT[:-1].encode(), PARENT.upper().encode(), PARENT.replace("00-", "ff-", 1).encode(),
        f"00-{'0' * 32}-{SPAN}-01".encode(), f"00-{TRACE}-{'0' * 16}-01".encode(), PARENT.encode() + b"-more",
        PARENT.encode().replace(b"-", b"\xff"), b"0" * 10_000,
    ],
)  # fmt: skip
def test_what_is_no_trace_context_is_left_aside(value: bytes) -> None:
    assert begin((b"traceparent", value)) is None


def test_two_parents_are_none() -> None:
    assert begin((b"traceparent", PARENT.encode()), (b"traceparent", PARENT.encode())) is None


def test_states_in_several_headers_are_one() -> None:
    found = begin((b"traceparent", PARENT.encode()), (b"tracestate", b"a=1"), (b"tracestate", b"b=2"))
    assert Parent(int(TRACE, 16), int(SPAN, 16), True, "a=1,b=2") == found


@pytest.mark.parametrize(
    "state",
    [
        b"\xff",
        b"=",
        b"a=" + b"x" * 10_000,
        b",".join(b"k%d=1" % i for i in range(100)),
        b"k=" + b"x" * 250 + b",l=" + b"y" * 250 + b",m=" + b"z" * 250,
    ],
)
def test_a_state_that_is_none_costs_the_state_and_not_the_parent(state: bytes) -> None:
    found = begin((b"traceparent", PARENT.encode()), (b"tracestate", state))
    assert found is not None
    assert (TRACE, True) == (f"{found.trace_id:032x}", len(found.state) <= MAX_STATE_CHARS)


def sampler(clock: ManualClock | None = None, **settings: Any) -> Sampler:
    return Sampler(TracingSettings(**settings), clock or ManualClock(), random.Random(7))


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.5, 1.0])
def test_the_ratio_is_kept_whatever_trace_id_a_client_chooses(ratio: float) -> None:
    of_all = sampler(sample_ratio=ratio, client_samples_per_minute=0)
    asked = Parent(1, 1, is_sampled=True)  # an id so small that every ratio by ids would take it
    taken = sum(of_all.decide("acme", asked) for _ in range(4000)) / 4000
    without = sum(of_all.decide("acme", None) for _ in range(4000)) / 4000

    assert pytest.approx(ratio, abs=0.03) == taken
    assert pytest.approx(ratio, abs=0.03) == without


def test_each_tenant_may_ask_for_so_many_a_minute() -> None:
    clock = ManualClock()
    bounded = sampler(clock, sample_ratio=0, client_samples_per_minute=3)
    asked = Parent(5, 5, is_sampled=True)

    def num_taken(tenant: str) -> int:
        return sum(bounded.decide(tenant, asked) for _ in range(10))

    assert (3, 3, 0) == (num_taken("acme"), num_taken("bravo"), num_taken("acme"))
    clock.advance(60)
    assert 3 == num_taken("acme")


def test_nobody_fills_the_collector() -> None:
    everything, asked = sampler(sample_ratio=1.0), Parent(5, 5, is_sampled=True)
    assert NOBODYS_A_MINUTE == sum(everything.decide(None, asked) for _ in range(1000))
    assert not sampler(sample_ratio=0).decide(None, asked)
