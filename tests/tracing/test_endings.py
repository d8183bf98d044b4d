"""However a request ends, a collector gets one whole trace of it, through the real exporter."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.services.images import data_url, encoded
from tests.services.otlp import Collector, Trace
from tests.tracing.conftest import CITY, SCRIPT, WEATHER
from tests.wire.customers import Customer, House, open_house, wait_for

ALL = ["admission", "engine", "queue", "render", "stream"]
both_ways = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture(scope="module")
def house(collector: Collector, tracing: dict[str, Any]) -> Iterator[House]:
    with open_house(SCRIPT, tracing=tracing, models={"kimi-k3": {}, "strict": {"tool_call_policy": "retry"}}) as house:
        yield house


def check(collector: Collector, customer: Customer, outcome: str, names: list[str], code: str | None = None) -> Trace:
    """The customer's one trace, with these parts."""
    trace = collector.trace_of(customer.name, len(names))
    root = trace.root
    assert (sorted(names), outcome, code) == (trace.names, root.attributes["k3gw.outcome"], root.attributes.get("error.type"))
    assert ("", "server") == (root.status_message, root.kind)
    assert {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "k3_gateway"}.items() <= root.attributes.items()
    assert "k3-gateway" == root.resource["service.name"]
    if code is None:
        assert "unset" == root.status
    return trace


FINISHED: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "stop": ("hi", {}, ["stop"]),
    "length": ("hi", {"max_tokens": 7}, ["length"]),
    "a stop string": ("hi", {"stop": ["said"]}, ["stop"]),
    "tool calls": ("call", {"tools": [WEATHER]}, ["tool_calls"]),
    "three choices": ("hi", {"n": 3}, ["stop"] * 3),
}


@both_ways
@pytest.mark.parametrize("name", FINISHED)
def test_finished(house: House, collector: Collector, name: str, stream: bool) -> None:
    text, fields, reasons = FINISHED[name]
    customer = house.tenant()
    answer = customer.chat(text, stream=stream, temperature=0.5, **fields)
    n = fields.get("n", 1)

    trace = check(collector, customer, "finished", ["admission", "render", "stream", *["engine", "queue"] * n])
    (row,) = house.rows(customer, 1)
    chunk = answer.frames[0] if stream else answer.body
    expected = {
        "gen_ai.request.model": "kimi-k3",
        "gen_ai.response.model": "kimi-k3",
        "gen_ai.response.id": chunk["id"],
        "gen_ai.response.finish_reasons": reasons,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.usage.input_tokens": row["input_tokens"],
        "gen_ai.usage.output_tokens": row["output_tokens"],
        "gen_ai.usage.cache_read.input_tokens": row["cached_tokens"],
        "http.response.status_code": 200,
        "http.route": "/v1/chat/completions",
        "server.address": "127.0.0.1",
        "k3gw.key_id": row["key_id"],
        "k3gw.request_id": answer.headers["x-request-id"],
    }
    assert expected == {key: trace.root.attributes.get(key) for key in expected}
    assert "chat kimi-k3" == trace.root.name
    assert (fields.get("max_tokens"), stream, n) == (
        trace.root.attributes.get("gen_ai.request.max_tokens"),
        trace.root.attributes.get("gen_ai.request.stream", False),
        trace.root.attributes.get("gen_ai.request.choice.count", 1),
    )
    assert trace.root.attributes["k3gw.queue_seconds"] >= 0
    engines = [part for part in trace.parts if part.name == "engine"]
    assert list(range(n)) == sorted(part.attributes["k3gw.choice"] for part in engines)
    assert row["output_tokens"] == sum(part.attributes["k3gw.engine.output_tokens"] for part in engines)
    assert ["first_token"] * n == [event for part in engines for event, _ in part.events]
    assert not any("k3gw.cancelled" in part.attributes or "error.type" in part.attributes for part in trace.parts)
    assert {"unset"} == {part.status for part in trace.parts}


def test_the_parts_follow_each_other(house: House, collector: Collector) -> None:
    customer = house.tenant()
    customer.chat("hi", stream=True)
    trace = check(collector, customer, "finished", ALL)

    assert ["render", "admission", "queue", "engine", "stream"] == [part.name for part in trace.parts]
    engine, stream = trace.part("engine"), trace.part("stream")
    assert engine.events[0][1] <= stream.start_ns
    assert engine.end_ns <= stream.end_ns


def test_guessed_tokens(house: House, collector: Collector) -> None:
    customer = house.tenant()
    customer.chat("guess")
    engine = check(collector, customer, "finished", ALL).part("engine").attributes

    assert 0 < engine["k3gw.engine.accepted_tokens"] < engine["k3gw.engine.draft_tokens"]


@both_ways
def test_calls_that_are_sampled_again_are_engine_requests_of_their_own(house: House, collector: Collector, stream: bool) -> None:
    customer = house.tenant()
    answer = customer.chat("call", model="strict", tools=[CITY], stream=stream)
    assert "invalid_tool_call" == answer.error["code"]

    names = ["admission", "queue", "render", "engine", "engine", "engine", *["stream"] * (answer.status == 200)]
    trace = check(collector, customer, "invalid_tool_call", names, "invalid_tool_call")
    engines = [part for part in trace.parts if part.name == "engine"]
    assert [1, 2, 3] == [part.attributes["k3gw.attempt"] for part in engines]
    assert 2 == trace.root.attributes["k3gw.tool_call_retries"]
    assert ["unset", "unset"] == [part.status for part in engines[:2]]
    assert "error" == trace.root.status


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], int, str, str]] = {
    "malformed": ({}, {"temperature": 9.0}, 400, "invalid_value", "invalid"),
    "no such model": ({}, {"model": "nothing"}, 404, "model_not_found", "invalid"),
    "not this model": ({"models": ["strict"]}, {}, 403, "model_not_allowed", "denied"),
    "suspended": ({"suspended": True}, {}, 403, "tenant_suspended", "denied"),
}


@both_ways
@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_anything_is_done(house: House, collector: Collector, name: str, stream: bool) -> None:
    settings, fields, status, code, outcome = REFUSED[name]
    customer = house.tenant(**settings)
    answer = customer.chat(stream=stream, **fields)
    assert status == answer.status, answer

    trace = check(collector, customer, outcome, [], code)
    assert (status, "unset") == (trace.root.attributes["http.response.status_code"], trace.root.status)
    assert ("chat", None) == (trace.root.name, trace.root.attributes.get("gen_ai.request.temperature"))


def test_nobody(house: House, collector: Collector) -> None:
    answer = httpx.post(f"{house.url}/v1/chat/completions", json={}, headers={"x-request-id": "nobody-1"})
    assert 401 == answer.status_code

    def found() -> list[Trace]:
        return [trace for trace in collector.traces() if trace.root.attributes["k3gw.request_id"] == "nobody-1"]

    (trace,) = wait_for(found)
    assert ([], None, "invalid_api_key") == (trace.parts, trace.root.tenant, trace.root.attributes["error.type"])


@both_ways
def test_one_request_too_many(house: House, collector: Collector, stream: bool) -> None:
    customer = house.tenant(limits={"requests_per_minute": 1})
    assert (200, 429) == (customer.chat(stream=stream).status, customer.chat(stream=stream).status)

    def all_of_both(traces: list[Trace]) -> bool:
        return 2 == len(traces) and len(ALL) == len(traces[0].parts)

    first, second = wait_for(lambda: collector.traces(customer.name), all_of_both)
    assert (ALL, [], "limited", "rate_limit_exceeded") == (
        first.names,
        second.names,
        second.root.attributes["k3gw.outcome"],
        second.root.attributes["error.type"],
    )


@both_ways
def test_a_limit(house: House, collector: Collector, stream: bool) -> None:
    customer = house.tenant(limits={"input_tokens_per_minute": 200})
    answer = customer.chat("word " * 300, stream=stream)
    assert 400 == answer.status

    trace = check(collector, customer, "invalid", ["render", "admission"], "request_exceeds_limit")
    assert ("request_exceeds_limit", "unset") == (
        trace.part("admission").attributes["error.type"],
        trace.part("admission").status,
    )


@both_ways
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("text", ["silent", "hold"])
def test_a_client_that_leaves(house: House, collector: Collector, text: str, n: int, stream: bool) -> None:
    customer = house.tenant()
    with customer.connection(text, stream=stream, n=n):
        wait_for(lambda: [entry["num_generated_tokens"] for entry in customer.at_engine()] == [0 if text == "silent" else 5] * n)
    has_begun = stream and text == "hold"
    names = ["admission", "render", *["engine", "queue"] * n, *["stream"] * has_begun]
    trace = check(collector, customer, "cancelled", names)
    cut = {part.name for part in trace.parts if part.attributes.get("k3gw.cancelled")}
    assert ({"engine", "stream"} if has_begun else {"engine"}) == cut
    assert {"unset"} == {part.status for part in trace.parts}


def test_a_client_that_leaves_before_it_has_sent_all(house: House, collector: Collector) -> None:
    customer = house.tenant()
    with customer.connection(cut=5):
        wait_for(lambda: house.gateway.gateway.answers.num_open)
    check(collector, customer, "cancelled", [])


@both_ways
def test_a_client_that_leaves_while_its_prompt_is_rendered(collector: Collector, tracing: dict[str, Any], stream: bool) -> None:
    with open_house(SCRIPT, tracing=tracing) as house:
        generator, begun = house.gateway.gateway.generator(), threading.Event()

        async def render(conversation: Any, group: str) -> Any:
            begun.set()
            await asyncio.Event().wait()

        generator._formats["kimi_k3"].render = render  # type: ignore[method-assign]
        customer = house.tenant()
        with customer.connection(stream=stream):
            assert begun.wait(15)
        trace = check(collector, customer, "cancelled", ["render"])
    assert trace.part("render").attributes == {"k3gw.cancelled": True}


@both_ways
def test_waiting_for_too_long_and_leaving_the_queue(collector: Collector, tracing: dict[str, Any], stream: bool) -> None:
    with open_house(SCRIPT, seats=1, admission={"queue_timeout_s": 0.3}, tracing=tracing) as house:
        first, leaver, customer = house.tenant(), house.tenant(), house.tenant()
        with first.stream("hold"):
            with leaver.connection(stream=stream):
                wait_for(lambda: house.gateway.gateway.queue.num_queued)
            trace = check(collector, leaver, "cancelled", ["admission", "queue", "render"])
            assert trace.part("queue").attributes["k3gw.cancelled"]
            assert "queue_timeout" == customer.chat(stream=stream).error["code"]
            trace = check(collector, customer, "rejected", ["admission", "queue", "render"], "queue_timeout")
    queue = trace.part("queue")
    assert ("error", "error", "queue_timeout") == (trace.root.status, queue.status, queue.attributes["error.type"])
    assert queue.end_ns - queue.start_ns > 0.25e9


@both_ways
@pytest.mark.parametrize("text", ["silent", "hold"])
def test_taking_too_long(collector: Collector, tracing: dict[str, Any], text: str, stream: bool) -> None:
    with open_house(SCRIPT, admission={"request_timeout_s": 0.4}, tracing=tracing) as house:
        customer = house.tenant()
        answer = customer.chat(text, stream=stream)
        names = [name for name in ALL if name != "stream" or answer.status == 200]
        trace = check(collector, customer, "timeout", names, "deadline_exceeded")
    engine = trace.part("engine")
    assert ("error", "deadline_exceeded") == (engine.status, engine.attributes["error.type"])


@both_ways
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("text", ["break at once", "break"])
def test_an_error_of_the_engine(house: House, collector: Collector, text: str, n: int, stream: bool) -> None:
    customer = house.tenant()
    answer = customer.chat(text, stream=stream, n=n)
    names = ["admission", "render", *["engine", "queue"] * n, *["stream"] * (answer.status == 200)]
    trace = check(collector, customer, "error", names, "engine_error")
    assert {"engine_error"} == {part.attributes["error.type"] for part in trace.parts if part.name in ("engine", "stream")}
    assert ["error"] * n == [part.status for part in trace.parts if part.name == "engine"]
    assert "error" == trace.root.status


@both_ways
@pytest.mark.parametrize("text", ["die at once", "die"])
def test_the_end_of_the_engine(collector: Collector, tracing: dict[str, Any], text: str, stream: bool) -> None:
    with open_house(SCRIPT, tracing=tracing) as house:
        other, customer, later = house.tenant(), house.tenant(), house.tenant()
        with other.stream("hold"):
            answer = customer.chat(text, stream=stream)
            names = [name for name in ALL if name != "stream" or answer.status == 200]
            trace = check(collector, customer, "engine_dead", names, "engine_dead")
            assert ("error", "error") == (trace.root.status, trace.part("engine").status)
            check(collector, other, "engine_dead", ALL, "engine_dead")
        later.chat(stream=stream)
        check(collector, later, "engine_dead", [], "engine_dead")


@both_ways
def test_the_end_of_the_gateway(collector: Collector, tracing: dict[str, Any], stream: bool) -> None:
    with open_house(SCRIPT, http={"drain_timeout_s": 0}, tracing=tracing) as house:
        running, refused = house.tenant(), house.tenant()
        with running.connection("hold", stream=stream):
            wait_for(lambda: [entry["num_generated_tokens"] for entry in running.at_engine()] == [5])
            assert house.http.post(f"{house.url}/admin/v1/drain", headers=house.gateway.admin).status_code == 202
            assert refused.chat(stream=stream).outcome == (503, "draining")
            names = [name for name in ALL if name != "stream" or stream]
            check(collector, running, "rejected", names, "draining")
        check(collector, refused, "rejected", [], "draining")


def test_what_ends_last_is_exported_before_the_process_ends(collector: Collector, tracing: dict[str, Any]) -> None:
    with open_house(SCRIPT, tracing=tracing) as house:
        customer = house.tenant()
        held = customer.stream("hold")
        held.__enter__()
        house.gateway._server.should_exit = True
        house.gateway._thread.join(20)
        (trace,) = collector.traces(customer.name)
        held.__exit__(None, None, None)
    assert ALL == trace.names


@both_ways
@pytest.mark.parametrize("is_good", [True, False])
def test_images(house: House, collector: Collector, is_good: bool, stream: bool) -> None:
    customer = house.tenant()
    url = data_url(encoded(57, 29) if is_good else b"\x89PNG\r\n\x1a\n" + b"0" * 100)
    content = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": url}}]
    answer = customer.chat(stream=stream, messages=[{"role": "user", "content": content}])
    assert (200 if is_good else 422) == answer.status

    if is_good:
        trace = check(collector, customer, "finished", ["media", *ALL])
        assert trace.root.attributes["gen_ai.usage.image.input_tokens"] > 0
    else:
        trace = check(collector, customer, "invalid", ["media"], "invalid_image")
        assert "invalid_image" == trace.part("media").attributes["error.type"]
    assert 1 == trace.part("media").attributes["k3gw.images"]
    assert url not in repr(trace)


def test_other_paths_are_not_traced(house: House, collector: Collector) -> None:
    customer = house.tenant()
    for path in ("/v1/models", "/health", "/v1/nothing", "/metrics"):
        httpx.get(house.url + path, headers=customer.headers)
    customer.chat()
    check(collector, customer, "finished", ALL)

    assert 1 == len(collector.traces(customer.name))


def test_nothing_is_left_over(house: House, collector: Collector) -> None:
    """Every span that has ever come belongs to a trace with one span of its request's own."""
    traces = collector.traces()

    assert len(collector.spans) == sum(1 + len(trace.parts) for trace in traces)
    assert len(traces) == len({trace.root.trace_id for trace in traces})
    assert len(collector.spans) == len({span.span_id for span in collector.spans})
