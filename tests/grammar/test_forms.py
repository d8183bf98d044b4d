"""The channels of an answer: what may come, what must, and where it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from server.grammar.base import Bounds, Grammar, Shape
from tests.grammar.conftest import Engine, Speaker

EngineOf = Callable[[Speaker], Engine]

WEATHER = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}},
}
TIME = {"type": "function", "function": {"name": "g"}}
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
JSON: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
CLOSE_THINK, OPEN_RESPONSE = ["close", "think", "sep"], ["open", "response", "sep"]
CLOSE_RESPONSE, CLOSE_MESSAGE, END = ["close", "response", "sep"], ["close", "message", "sep"], ["end_of_msg"]
CALL = (("f", [("a", "string", "x")]),)


class Trial:
    def __init__(self, speaker: Speaker, engine: Engine, grammar: Grammar) -> None:
        self._speaker = speaker
        self._engine = engine
        self._grammar = grammar

    def takes(self, *pieces: Any) -> bool:
        return self._engine.accepts(self._grammar, self._speaker.write(*pieces))

    def takes_calls(self, *calls: Any, content: str = "") -> bool:
        return self._engine.accepts(self._grammar, self._speaker.calls(*calls, content=content))


@pytest.fixture
def trial(speaker: Speaker, engine_of: EngineOf) -> Callable[..., Trial]:
    def make(bounds: Bounds | None = None, **shape: Any) -> Trial:
        return Trial(speaker, engine_of(speaker), speaker.grammar(Shape(**shape), bounds))

    return make


@pytest.mark.vllm
def test_auto_may_call_and_need_not(trial: Callable[..., Trial]) -> None:
    auto = trial(tools=[WEATHER, TIME])

    assert auto.takes("text", CLOSE_RESPONSE, CLOSE_MESSAGE, END)
    assert auto.takes(CLOSE_RESPONSE, CLOSE_MESSAGE, END)
    assert auto.takes_calls(*CALL, content="text")
    assert auto.takes_calls(*CALL, ("g", ()), *CALL)
    assert not auto.takes_calls()
    assert not auto.takes_calls(("h", ()))


@pytest.mark.vllm
def test_required_must_call(trial: Callable[..., Trial]) -> None:
    required = trial(tools=[WEATHER, TIME], tool_choice="required")

    assert required.takes_calls(*CALL)
    assert required.takes_calls(("g", ()), content="text")
    assert not required.takes("text", CLOSE_RESPONSE, CLOSE_MESSAGE, END)


@pytest.mark.vllm
def test_a_named_tool_must_be_called_and_no_other(trial: Callable[..., Trial]) -> None:
    named = trial(tools=[WEATHER, TIME], named="g")

    assert named.takes_calls(("g", ()), ("g", ()))
    assert not named.takes_calls(("g", ()), *CALL)
    assert not named.takes_calls(*CALL)
    assert not named.takes("text", CLOSE_RESPONSE, CLOSE_MESSAGE, END)


@pytest.mark.vllm
def test_without_parallel_calls_there_is_one(trial: Callable[..., Trial]) -> None:
    single = trial(tools=[WEATHER, TIME], parallel=False)

    assert single.takes_calls(*CALL)
    assert single.takes(CLOSE_RESPONSE, CLOSE_MESSAGE, END)
    assert not single.takes_calls(*CALL, ("g", ()))


@pytest.mark.vllm
def test_none_forbids_calls(trial: Callable[..., Trial]) -> None:
    none = trial(tools=[WEATHER], tool_choice="none", response_format={"type": "json_object"})

    assert none.takes('{"a":1}', CLOSE_RESPONSE, CLOSE_MESSAGE, END)
    assert not none.takes_calls(*CALL, content='{"a":1}')


@pytest.mark.vllm
def test_reasoning_has_to_be_closed_before_the_response(trial: Callable[..., Trial]) -> None:
    thinking = trial(tools=[WEATHER], thinking=True)

    assert thinking.takes("thought", CLOSE_THINK, OPEN_RESPONSE, "text", CLOSE_RESPONSE, CLOSE_MESSAGE, END)
    assert not thinking.takes("thought", OPEN_RESPONSE, "text", CLOSE_RESPONSE, CLOSE_MESSAGE, END)
    assert not thinking.takes("thought", CLOSE_RESPONSE, CLOSE_MESSAGE, END)
    assert not thinking.takes("thought", CLOSE_THINK, "text", CLOSE_RESPONSE, CLOSE_MESSAGE, END)
    assert not thinking.takes("thought", END)


@pytest.mark.vllm
def test_json_is_compact(trial: Callable[..., Trial]) -> None:
    held = trial(response_format=JSON)

    assert held.takes('{"x":1}', CLOSE_RESPONSE, CLOSE_MESSAGE, END)
    for text in ('{"x": 1}', '{ "x":1}', '{"x":1}\n', '{"x":"1"}', "{}", "text", ""):
        assert not held.takes(text, CLOSE_RESPONSE, CLOSE_MESSAGE, END), text


@pytest.mark.vllm
def test_json_or_calls(trial: Callable[..., Trial]) -> None:
    both = trial(response_format=JSON, tools=[WEATHER])

    assert both.takes('{"x":1}', CLOSE_RESPONSE, CLOSE_MESSAGE, END)
    assert both.takes_calls(*CALL)
    assert not both.takes_calls(*CALL, content='{"x":1}\n'), "an answer that goes on behind its JSON would never end"
    assert not both.takes("text", CLOSE_RESPONSE, CLOSE_MESSAGE, END)


@pytest.mark.vllm
def test_forced_calls_come_before_a_format(trial: Callable[..., Trial]) -> None:
    forced = trial(response_format=JSON, tools=[WEATHER], tool_choice="required")

    assert forced.takes_calls(*CALL, content="any text")
    assert not forced.takes('{"x":1}', CLOSE_RESPONSE, CLOSE_MESSAGE, END)


@pytest.mark.vllm
@pytest.mark.parametrize("content", ["<|close|>response<|sep|>", '[EOS] <|open|>call tool="f"<|sep|>', "<|end_of_msg|>"])
def test_spelled_markers_are_text_and_never_structure(trial: Callable[..., Trial], content: str) -> None:
    auto = trial(tools=[WEATHER])

    assert auto.takes(content, CLOSE_RESPONSE, CLOSE_MESSAGE, END)
    assert auto.takes_calls(("f", [("a", "string", content)]), content=content)
    assert not auto.takes("text<|close|>response<|sep|>", CLOSE_MESSAGE, END)
    assert not auto.takes("text", CLOSE_RESPONSE, "<|close|>message<|sep|>", END)


@pytest.mark.vllm
def test_control_tokens_never_stand_in_text(speaker: Speaker, engine_of: EngineOf) -> None:
    """Not in free text, nor where text is matched by its characters: each control token in each place, all by the mask."""
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "b": {"type": "string", "minLength": 2},
            "c": {"type": "array", "items": {"type": "string"}},
            "d": {"type": "string", "pattern": "^[^x]+$"},
        },
        "additionalProperties": {"enum": ["<|close|>", "[EOS]"]},
    }
    tools = [{"type": "function", "function": {"name": "<|open|>", "parameters": schema}}]
    grammar = speaker.grammar(Shape(tools=tools, thinking=True))
    engine, control = engine_of(speaker), speaker.vocabulary.control
    start = ["think<", CLOSE_THINK, OPEN_RESPONSE, "text[", CLOSE_RESPONSE, ["open", "tools", "sep"], ["open"], 'call tool="']
    inside = [*start, "<", '|open|>" index="1"', ["sep"], ["open"]]
    places: list[list[Any]] = [["think"], ["think<"], start[:4], start, [*start, "<"]]
    for key, kind, text in (
        *(("a", "string", "x<"), ("b", "string", "x"), ("b", "string", "xyz<"), ("c", "array", '["x'), ("c", "array", '["x<')),
        *(("c", "array", '["['), ("d", "string", "yy"), ("e", "string", ""), ("e", "string", "<"), ("e", "string", "[")),
    ):
        places.append([*inside, f'argument key="{key}" type="{kind}"', ["sep"], text])
    ends = {control["<|close|>"]}
    for place in places:
        allowed = engine.allowed(grammar, speaker.write(*place)) & speaker.vocabulary.control_ids

        assert allowed <= ends, place
        assert allowed == set() or place[-1][-1] not in '"'


@pytest.mark.vllm
def test_bounds_hold(trial: Callable[..., Trial]) -> None:
    bounds = Bounds(text_tokens=5, string_tokens=4, calls=2)
    short = trial(bounds, tools=[WEATHER])

    assert short.takes("a b c", CLOSE_RESPONSE, CLOSE_MESSAGE, END)
    assert not short.takes("a b c d e f", CLOSE_RESPONSE, CLOSE_MESSAGE, END)
    assert short.takes_calls(("f", [("a", "string", "abcd")]), *CALL)
    assert not short.takes_calls(("f", [("a", "string", "a b c d e")]))
    assert not short.takes_calls(*CALL, *CALL, *CALL)


@pytest.mark.vllm
def test_the_rest_of_an_answer_that_was_begun(trial: Callable[..., Trial]) -> None:
    rest = trial(tools=[WEATHER], after_calls=True)

    assert rest.takes(["close", "tools", "sep"], CLOSE_MESSAGE, END)
    assert rest.takes(
        ["open", 'call tool="f" index="2"', "sep"], ["close", "call", "sep"], ["close", "tools", "sep"], CLOSE_MESSAGE, END
    )
    assert not rest.takes("text", CLOSE_RESPONSE, CLOSE_MESSAGE, END)


@pytest.mark.parametrize("shape", [Shape(), Shape(response_format={"type": "text"})])
def test_nothing_is_held_where_nothing_is_asked_for(byte: Speaker, shape: Shape) -> None:
    assert byte.factory().make(shape) is None


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_the_shortest_answer_is_read_as_it_is_meant(speaker: Speaker, thinking: bool, choice: Any) -> None:
    grammar = speaker.grammar(Shape(tools=[TIME, WEATHER], tool_choice=choice, thinking=thinking))
    reading = speaker.read(grammar.shortest, thinking=thinking)

    assert reading.recoveries == {}
    assert [call.name for call in reading.calls] == ([] if choice == "auto" else ["g"])


@pytest.mark.vllm
@pytest.mark.parametrize(
    "shape",
    [
        Shape(tools=[WEATHER, TIME], thinking=True),
        Shape(response_format=JSON, tools=[WEATHER]),
        Shape(response_format={"type": "json_object"}),
    ],
)
def test_the_engines_front_end_takes_the_tag(byte: Speaker, shape: Shape) -> None:
    backend = pytest.importorskip("vllm.v1.structured_output.backend_xgrammar")
    params = pytest.importorskip("vllm.sampling_params")
    tag = byte.grammar(shape).structural_tag

    backend.validate_xgrammar_grammar(
        params.SamplingParams(structured_outputs=params.StructuredOutputsParams(structural_tag=tag))
    )
