"""curl, as the README shows it, and everything malformed that can be sent with it: a documented error, the process unharmed."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

Target = Any  # of conftest
CHAT = "/v1/chat/completions"
MEGABYTES = 1_000_000


@dataclass
class Answer:
    """What curl printed: `headers` with lower-case names."""

    status: int
    headers: dict[str, str]
    body: str

    @property
    def error(self) -> dict[str, Any]:
        assert "application/json" == self.headers["content-type"]
        content = json.loads(self.body)
        assert ["error"] == list(content)
        error: dict[str, Any] = content["error"]
        assert {"message", "type", "param", "code"} == set(error)
        assert error["message"]
        assert "Traceback" not in error["message"]
        return error


Curl = Callable[..., Answer]


@pytest.fixture(scope="session")
def curl() -> Curl:
    """`curl(target, path, *options, body=…, key=…)`: one request, its body from standard input."""
    program = shutil.which("curl")
    if program is None:
        pytest.skip("curl is not installed")

    def run(target: Target, path: str = CHAT, *options: str, body: Any = None, key: str | None = "") -> Answer:
        command = [program, "-sS", "--http1.1", "-i", "-N", "--max-time", "60", target.url + path, *options]
        if key is not None:
            command += ["-H", f"Authorization: Bearer {key or target.key}"]
        if body is not None:
            command += ["-H", "Content-Type: application/json", "--data-binary", "@-"]
        sent = body.encode() if isinstance(body, str) else body if isinstance(body, bytes) else json.dumps(body).encode()
        done = subprocess.run(command, input=sent, capture_output=True, timeout=90, check=False)
        assert 0 == done.returncode, done.stderr
        text = done.stdout.decode()
        while text.startswith("HTTP/1.1 100"):
            text = text.partition("\r\n\r\n")[2]
        head, _, content = text.partition("\r\n\r\n")
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return Answer(int(first.split()[1]), headers, content)

    return run


@pytest.fixture
def unharmed(curl: Curl, target: Target) -> Any:
    """After the test, the same process still answers."""
    yield
    answer = curl(target, body=target.body(target.HELLO, max_tokens=2))
    assert 200 == answer.status, answer.body


def test_a_whole_answer(curl: Curl, target: Target) -> None:
    answer = curl(target, body=target.body(target.CAPITAL))
    assert (200, "application/json") == (answer.status, answer.headers["content-type"])
    assert answer.headers["x-request-id"]
    assert "Paris" in json.loads(answer.body)["choices"][0]["message"]["content"]


def test_a_streamed_answer(curl: Curl, target: Target) -> None:
    answer = curl(target, body=target.body(target.CAPITAL, stream=True, stream_options={"include_usage": True}))
    assert 200 == answer.status
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "no-cache" == answer.headers["cache-control"]
    *events, end = answer.body.split("\n\n")
    assert "" == end
    assert "data: [DONE]" == events[-1]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    assert "Paris" in "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1])
    assert ([], True) == (chunks[-1]["choices"], chunks[-1]["usage"]["completion_tokens"] > 0)


def nested(opening: str, depth: int) -> str:
    return opening * depth


MALFORMED = {
    "no body": "",
    "blank": "  \n",
    "not JSON": "hello",
    "form": "model=kimi-k3&messages=x",
    "cut": '{"model": "kimi-k3", "messages": [{"role": "us',
    "trailing comma": '{"model": "kimi-k3", "messages": [],}',
    "two objects": '{"model": "kimi-k3"} {}',
    "single quotes": "{'model': 'kimi-k3'}",
    "list": "[]",
    "text": '"hello"',
    "number": "5",
    "null": "null",
    "byte order mark alone": b"\xef\xbb\xbf",
    "not UTF-8": b'{"model": "kimi-k3", "messages": [{"role": "user", "content": "\xff\xfe"}]}',
    "NUL": b'{"model": "kimi-k3\x00", "messages": []}',
    "NaN": '{"model": "kimi-k3", "messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
    "Infinity": '{"model": "kimi-k3", "messages": [{"role": "user", "content": "x"}], "top_p": -Infinity}',
    "lone high surrogate": r'{"model": "kimi-k3", "messages": [{"role": "user", "content": "\ud800"}]}',
    "lone low surrogate": r'{"model": "kimi-k3", "messages": [{"role": "user", "content": "\udc00x"}]}',
    "20 MB of open lists": nested("[", 20 * MEGABYTES),
    "20 MB of open objects": nested('{"a":', 4 * MEGABYTES),
    "20 MB of lists in a message": '{"model": "kimi-k3", "messages": [{"role": "user", "content": ' + nested("[", 20 * MEGABYTES),
    "deep within the limit": '{"model": "kimi-k3", "messages": ' + nested("[", 900_000),
    "deep where anything goes": '{"model": "kimi-k3", "messages": [], "metadata": {"a": '
    + nested("[", 500_000)
    + "]" * 500_000
    + "}}",
    "20 MB of numbers": '{"model": "kimi-k3", "messages": [' + "1," * (10 * MEGABYTES) + "1]}",
}


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_is_not_a_request_is_a_400(curl: Curl, target: Target, body: str | bytes) -> None:
    answer = curl(target, body=body)
    assert 400 == answer.status
    assert "invalid_request_error" == answer.error["type"]


@pytest.mark.usefixtures("unharmed")
def test_causes_that_can_not_be_seen_are_named(curl: Curl, target: Target) -> None:
    named = {name: curl(target, body=MALFORMED[name]).error["message"] for name in ("no body", "NaN", "lone high surrogate")}
    assert "no body" in named["no body"]
    assert "`NaN`" in named["NaN"]
    assert "surrogate" in named["lone high surrogate"]


USER = {"role": "user", "content": "x"}
WRONG = [
    ({"model": 5}, "model"),
    ({"model": None}, "model"),
    ({"messages": None}, "messages"),
    ({"messages": {}}, "messages"),
    ({"messages": "x"}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": ["x"]}, "messages[0]"),
    ({"messages": [USER, {"content": "x"}]}, "messages[1].role"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": {"type": "text"}}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ({"messages": [USER, {"role": "assistant", "tool_calls": [{"function": {}}]}]}, "messages[1].tool_calls[0].function.name"),
    ({"tools": {}}, "tools"),
    ({"tools": [5]}, "tools[0]"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools[0].function.parameters"),
    ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice.function.name"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": 5}}},
        "response_format.json_schema.schema",
    ),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": "yes"}, "stream": True}, "stream_options.include_usage"),
    ({"stop": [5]}, "stop[0]"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"temperature": "hot"}, "temperature"),
    ({"seed": 2**70}, "seed"),
    ({"n": 100_000}, "n"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
]


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize(("fields", "param"), WRONG, ids=str)
def test_a_wrong_field_is_a_400_with_its_path(curl: Curl, target: Target, fields: dict[str, Any], param: str) -> None:
    answer = curl(target, body=target.body("x", **fields))
    assert (400, param) == (answer.status, answer.error["param"])


@pytest.mark.usefixtures("unharmed")
def test_schemas_nested_to_any_depth_do_no_harm(curl: Curl, target: Target) -> None:
    for depth in (50, 150, 500, 5000, 100_000):
        parameters = '{"properties": ' * depth + "{}" + "}" * depth
        tool = '[{"type": "function", "function": {"name": "f", "parameters": ' + parameters + "}}]"
        body = json.dumps(target.body("x", max_tokens=1, tools="TOOLS")).replace('"TOOLS"', tool)
        answer = curl(target, body=body)
        assert answer.status in {200, 400}, answer.body
        assert 200 == answer.status or answer.error["message"]


EXTREME = [
    {"top_k": 2**40},
    {"top_k": 10**30},
    {"temperature": 1e300},
    {"temperature": 1e-300},
    {"top_p": 1e-300},
    {"min_p": 1},
    {"repetition_penalty": 1e-300},
    {"presence_penalty": 2, "frequency_penalty": -2},
    {"seed": 2**63 - 1},
    {"seed": -(2**63)},
    {"max_tokens": 10**30},
    {"logit_bias": {"0": 100, "200": -100}},
    {"logprobs": True, "top_logprobs": 20},
    {"stop": ["a" * 1024] * 16},
]


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("fields", EXTREME, ids=str)
def test_the_ends_of_the_ranges_do_no_harm(curl: Curl, target: Target, fields: dict[str, Any]) -> None:
    """They are served, or refused where the engine has limits of its own."""
    answer = curl(target, body=target.body(target.HELLO, **{"max_tokens": 3, **fields}))
    assert answer.status in {200, 400}, answer.body
    assert 200 == answer.status or answer.error["message"]


@pytest.mark.usefixtures("unharmed")
def test_an_unknown_model_is_a_404_that_lists_those_allowed(curl: Curl, target: Target) -> None:
    answer = curl(target, body=target.body("x", model="gpt-9"))
    assert (404, "model_not_found") == (answer.status, answer.error["code"])
    assert "models you may use: `kimi-k3`" in answer.error["message"]


def test_a_prompt_longer_than_the_context_is_told_both_numbers(curl: Curl, scripted: Target, start_gateway: Any) -> None:
    gateway = start_gateway(context_length=100)
    target = type(scripted)(f"{gateway.url}/v1", scripted.key)
    for stream in (False, True):
        answer = curl(target, body=target.body("x" * 200, stream=stream))
        assert (400, "context_length_exceeded", "messages") == (answer.status, answer.error["code"], answer.error["param"])
        request = next(word for word in answer.error["message"].split() if word.isdigit())
        assert int(request) > 200
        assert "has 100;" in answer.error["message"]
    assert 200 == curl(target, body=target.body("x")).status


def test_a_body_over_the_limit_is_a_413(curl: Curl, scripted: Target, start_gateway: Any) -> None:
    gateway = start_gateway(http={"max_body_bytes": 2000})
    target = type(scripted)(f"{gateway.url}/v1", scripted.key)
    for length in (2001, 20 * MEGABYTES):
        body = json.dumps(target.body("x" * length))
        for options in ([], ["-H", "Transfer-Encoding: chunked"]):
            answer = curl(target, CHAT, *options, body=body)
            assert (413, "body_too_large") == (answer.status, answer.error["code"])
    assert 200 == curl(target, body=target.body("x" * 1000)).status


@pytest.mark.usefixtures("unharmed")
def test_a_wrong_method_is_a_405(curl: Curl, target: Target) -> None:
    answer = curl(target, CHAT, "-X", "GET")
    assert (405, "POST", "method_not_allowed") == (answer.status, answer.headers["allow"], answer.error["code"])
    assert 405 == curl(target, "/v1/models", "-X", "DELETE").status


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("path", ["/", "/v1", "/v1/nothing", "/docs", "/adm", "/v1/chat/completions/", "/v1/%2e%2e/x", "/%00"])
def test_an_unknown_path_is_a_404_with_a_key_and_a_401_without(curl: Curl, target: Target, path: str) -> None:
    assert 404 == curl(target, path).status
    without = curl(target, path, key=None)
    assert (401, "invalid_api_key", "Bearer") == (without.status, without.error["code"], without.headers["www-authenticate"])


def test_health_and_readiness_need_no_key(curl: Curl, target: Target) -> None:
    assert [200, 200] == [curl(target, path, key=None).status for path in ("/health", "/ready")]


@pytest.mark.parametrize("key", [None, "wrong", "é", "x" * 4000])
def test_without_a_good_key_there_is_no_answer(curl: Curl, target: Target, key: str | None) -> None:
    for path in (CHAT, "/v1/models", "/debug/engine"):
        assert 401 == curl(target, path, key=key).status
