"""What clients and models say is in no log line, at any level and in either form, and in no span unless it is asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest
import structlog

from server import logs
from server.sections import LogSettings
from server.tracing.content import MAX_CHARS
from tests.services.images import data_url, encoded
from tests.services.otlp import Collector
from tests.tracing.conftest import CITY, SCRIPT, WEATHER
from tests.wire.customers import END, Customer, House, open_house, wait_for

CANARY = "xcanaryx"
SAID: list[Any] = [
    {"when": {"contains": "say it"}, "reply": [{"text": CANARY}, *END]},
    {"when": {"contains": "call it"}, "reply": [{"control": [
        "</response>", "<tools>", {"call": {"tool": CANARY, "index": 1}}, {"argument": {"key": CANARY, "value": CANARY}}, "</call>",
        "</tools>", "</message>"]}, "stop"]},
    *SCRIPT,
]  # fmt: skip
USER = {"role": "user", "content": f"hi {CANARY}"}
IMAGE = data_url(encoded(2, 2))


def tool(**function: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "weather", **function}}]}


def history(**message: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": "assistant", **message}, USER]}


def called(**call: Any) -> dict[str, Any]:
    whole = {"id": CANARY, "type": "function", "function": {"name": CANARY, "arguments": json.dumps({CANARY: CANARY})}, **call}
    return {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [whole]},
            {"role": "tool", "tool_call_id": CANARY, "content": CANARY},
        ]
    }


def picture(url: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": url}]}]}


def schema(of: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": CANARY, "schema": of}}}


BODIES: list[dict[str, Any]] = [
    {}, {"model": CANARY}, {"messages": CANARY}, {"messages": [{"role": CANARY, "content": CANARY}]}, {"messages": [CANARY]},
    {"messages": [{"role": "user", "content": {CANARY: CANARY}}]}, {"messages": [{"role": "user", CANARY: CANARY}]},
    {"messages": [{"role": "user", "content": [{"type": CANARY, "text": CANARY}]}]},
    {"messages": [{"role": "system", "content": CANARY}, {"role": "developer", "content": CANARY}, {**USER, "name": CANARY}]},
    history(content=CANARY, reasoning_content=CANARY), history(content=CANARY, tools=[CANARY]), history(tool_calls=CANARY),
    called(), called(type=CANARY), called(function=CANARY), called(function={"name": CANARY, "arguments": CANARY + '{"'}),
    called(function={"name": CANARY, "arguments": f'{{"a": {CANARY}}}'}),
    {"messages": [USER, {"role": "tool", "tool_call_id": CANARY, "content": CANARY}]},
    {"messages": [USER, {"role": "assistant", "content": CANARY, "partial": True}]},
    tool(name=CANARY, description=CANARY), tool(name=f"{CANARY} {CANARY}"), tool(name=CANARY * 40),
    tool(parameters={"type": CANARY}), tool(parameters={"type": "object", "properties": {CANARY: {"type": CANARY}}}),
    tool(parameters={"type": "object", "properties": {CANARY: {"pattern": f"({CANARY}"}}}),
    tool(parameters={"type": "object", "properties": {CANARY: {"pattern": rf"(?=a){CANARY}"}}, "required": [CANARY, 1]}),
    tool(parameters={"$ref": f"#/{CANARY}"}), tool(parameters={"$ref": f"http://{CANARY}/"}), tool(strict=CANARY),
    {"tools": [{"type": CANARY}]}, {"tools": [{"type": "function", CANARY: CANARY}]}, {"tools": {CANARY: CANARY}},
    {"tools": [WEATHER], "tool_choice": CANARY},
    {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": CANARY}}},
    {"tools": [WEATHER], "tool_choice": {"type": CANARY}}, {"tools": [WEATHER], "tool_choice": "required"},
    {"response_format": {"type": CANARY}}, schema({"type": CANARY}), schema({"const": CANARY}), schema({"enum": [CANARY]}),
    schema({"type": "object", "properties": {CANARY: {"const": CANARY, "pattern": CANARY}}, "required": [CANARY]}),
    schema({"type": "string", "format": CANARY}), schema({"$defs": {CANARY: {"$ref": f"#/$defs/{CANARY}"}}, "$ref": f"#/$defs/{CANARY}"}),
    schema(CANARY), schema({CANARY: CANARY, "type": "string", "pattern": f"[{CANARY}"}),
    {"stop": CANARY}, {"stop": [CANARY, 1]}, {"stop": [CANARY] * 100}, {"user": CANARY}, {"metadata": {CANARY: CANARY}},
    {"reasoning_effort": CANARY}, {"thinking": {"type": CANARY}}, {"thinking": CANARY}, {"service_tier": CANARY},
    {"chat_template_kwargs": {CANARY: CANARY}}, {"chat_template_kwargs": CANARY}, {"logit_bias": {CANARY: 1}},
    {"logit_bias": CANARY}, {"temperature": CANARY}, {"n": CANARY}, {"max_tokens": CANARY}, {"stream_options": CANARY},
    {CANARY: CANARY}, {"cache_salt": CANARY}, {"priority": CANARY}, {"kv_transfer_params": {CANARY: CANARY}},
    picture(CANARY), picture({"url": CANARY}), picture({"url": f"http://{CANARY}.invalid/{CANARY}.png?{CANARY}"}),
    picture({"url": f"https://127.0.0.1/{CANARY}"}), picture({"url": f"https://{CANARY}:pw@example.com"}),
    picture({"url": f"data:{CANARY};base64,{CANARY}"}), picture({"url": f"data:image/png;base64,{CANARY}?"}),
    picture({"url": f"ftp://{CANARY}"}), picture({"url": IMAGE, "detail": CANARY}), picture({CANARY: CANARY}),
    {"messages": [{"role": "user", "content": [{"type": "text", "text": CANARY}, {"type": "image_url", "image_url": {"url": IMAGE}}]}]},
    {"messages": [{**USER, "content": f"{CANARY} {'word ' * 3000}"}], "model": "small"},
]  # fmt: skip
"""The canary wherever a body has room for it, as it should be and as it should not."""

TEXTS = ["say it", "call it", "break", "break at once", "call", "guess"]
RAW: list[bytes] = [
    CANARY.encode(), f'{{"{CANARY}": '.encode(), f'{{"messages": "{CANARY}\xff"}}'.encode("latin-1"),
    f'{{"model": "kimi-k3", "messages": [{{"role": "user", "content": "{CANARY}\\ud800"}}]}}'.encode(),
    f'["{CANARY}"]'.encode(), f'"{CANARY}"'.encode(), f'{{"n": NaN{CANARY}}}'.encode(), b"", (f'{{"{CANARY}":' * 3000).encode(),
]  # fmt: skip
HEADERS: list[dict[str, str]] = [
    {"user-agent": CANARY, "cookie": CANARY, "baggage": f"{CANARY}={CANARY}", "x-something": CANARY, "referer": CANARY},
    {"x-tenant": CANARY}, {f"x-k3gw-{CANARY}": CANARY}, {"content-encoding": CANARY}, {"content-type": CANARY},
    {"authorization": f"Bearer {CANARY}"}, {"authorization": f"{CANARY} {CANARY}"}, {"x-api-key": CANARY},
    {"traceparent": CANARY, "tracestate": CANARY}, {"x-request-id": f"{CANARY}!"},
]  # fmt: skip


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    structlog.reset_defaults()
    logs.configure(LogSettings(level="error"))


def make_faulty(house: House) -> None:
    """Whatever is asked for as `strict` meets a bug of ours that has the prompt in its hands."""
    generator = house.gateway.gateway.generator()
    prepare = generator.prepare

    async def fail(job: Any) -> Any:
        if job.model.name != "strict" or job.tools.names:
            return await prepare(job)
        try:
            {}[job.conversation.messages[0]["content"]]
        except KeyError as error:
            raise ValueError(f"can't take {job.conversation.messages[0]['content']!r}") from error

    generator.prepare = fail  # type: ignore[method-assign]


def send_everything(house: House, customer: Customer) -> tuple[int, set[int]]:
    """How many requests it was, and the statuses of what came back."""
    url, statuses = f"{house.url}/v1/chat/completions", set()
    questions = [customer.body("hi", messages=[USER]) | body for body in BODIES]
    questions += [customer.body(f"{text} {CANARY}", stream=stream) for text in TEXTS for stream in (False, True)]
    questions += [customer.body(f"{word} {CANARY}", model="strict", tools=[CITY]) for word in ("call", "call it")]
    questions += [customer.body(CANARY, model="strict")]
    with httpx.Client(timeout=60) as client:
        for body in questions:
            statuses.add(client.post(url, content=orjson.dumps(body), headers=customer.headers).status_code)
        for raw in RAW:
            statuses.add(client.post(url, content=raw, headers=customer.headers).status_code)
        for headers in HEADERS:
            answer = client.post(url, json=customer.body("hi"), headers={**customer.headers, **headers})
            statuses.add(answer.status_code)
        statuses.add(client.get(f"{house.url}/v1/models?{CANARY}={CANARY}", headers=customer.headers).status_code)
    with customer.connection(f"hold {CANARY}", stream=True):
        wait_for(lambda: customer.at_engine() and customer.at_engine()[-1]["num_generated_tokens"] == 5)
    wait_for(lambda: house.gateway.gateway.answers.is_empty)
    return len(questions) + len(RAW) + len(HEADERS) + 2, statuses


@pytest.mark.parametrize("form", ["json", "console"])
def test_neither_logs_nor_traces_have_what_was_said(
    collector: Collector, tracing: dict[str, Any], capsys: pytest.CaptureFixture[str], form: Any
) -> None:
    logs.configure(LogSettings(level="debug", format=form))
    media = {"remote_urls": "allow"}
    models = {"kimi-k3": {}, "strict": {"tool_call_policy": "error"}, "small": {}}
    with open_house(SAID, tracing=tracing, models=models, log={"level": "debug"}) as house:
        make_faulty(house)
        customer = house.tenant(media=media, limits={"input_tokens_per_minute": 10_000})
        num_requests, statuses = send_everything(house, customer)
        die = house.tenant()
        assert 503 == die.chat(f"die at once {CANARY}").status
    log = capsys.readouterr().err

    assert {200, 400, 401, 404, 422, 500, 502} <= statuses
    num_lines = len(re.findall(r'"path": "/v1/|path=/v1/', log))
    assert num_requests + 1 == num_lines
    assert [] == [line for line in log.splitlines() if CANARY in line.lower()][:3]
    assert [True] * 2 == [f"builtins.{text}" in log for text in ("ValueError: can't take ", "KeyError: ")]
    assert "num_fields" in log
    assert CANARY.encode() not in b"".join(body for _, body in collector.requests)


@pytest.mark.parametrize("stream", [False, True])
def test_content_is_recorded_where_it_is_asked_for(collector: Collector, tracing: dict[str, Any], stream: bool) -> None:
    with open_house(SAID, tracing={**tracing, "record_content": True}) as house:
        customer, caller, looker = house.tenant(), house.tenant(), house.tenant()
        customer.chat("say it", stream=stream, n=2)
        caller.chat("call it", stream=stream, **called())
        content = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": IMAGE}}]
        looker.chat(stream=stream, messages=[{"role": "user", "content": [*content, {"type": "text", "text": "w" * MAX_CHARS}]}])
        said, called_for, looked = (
            collector.trace_of(who.name, num).root.attributes for who, num in ((customer, 7), (caller, 5), (looker, 6))
        )

    text = [{"type": "text", "content": CANARY}]
    assert [{"role": "user", "parts": [{"type": "text", "content": "say it"}]}] == json.loads(said["gen_ai.input.messages"])
    assert [{"role": "assistant", "parts": text, "finish_reason": "stop"}] * 2 == json.loads(said["gen_ai.output.messages"])

    kinds = [[part["type"] for part in message["parts"]] for message in json.loads(called_for["gen_ai.input.messages"])]
    assert [["text"], ["tool_call"], ["tool_call_response"]] == kinds

    (asked,) = json.loads(looked["gen_ai.input.messages"])
    words, image, cut = asked["parts"]
    assert ({"type": "text", "content": "look"}, "image") == (words, image["modality"])
    assert "w" * (MAX_CHARS - 4) + "…" == cut["content"]
    assert IMAGE not in repr(looked)
