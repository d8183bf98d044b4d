"""What nearly all outputs are takes a short way to its frame: the same bytes as the long one."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.base import TokenLogprob
from server.events import ContentDelta, Event, Finish, FinishReason, ReasoningDelta, ToolCallArguments, ToolCallEnd
from server.job import Output
from server.record import GenerationRecord
from server.streaming.chat import ChatChunks, ChatShape
from server.vocabulary.byte import ByteVocabulary

TEXTS = st.text(min_size=1, max_size=6) | st.sampled_from(["\u2028", "\x85\u2029", '"\\\n', "\x00", "é€😀"])
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(ContentDelta, TEXTS),
    st.builds(ReasoningDelta, TEXTS),
    st.builds(ToolCallArguments, st.integers(0, 3), TEXTS),
    st.builds(ToolCallEnd, st.integers(0, 3)),
    st.builds(Finish, st.sampled_from(FinishReason)),
)
LOGPROBS = st.none() | st.just([]) | st.just([TokenLogprob(97, -0.5)])
OUTPUTS = st.lists(st.builds(Output, st.integers(0, 2), st.lists(EVENTS, max_size=3), LOGPROBS), max_size=8)


def chunks_of(fields: tuple[str, ...], **options: Any) -> ChatChunks:
    record = GenerationRecord(request_id="r", tenant="t", model="m", arrived_s=0.0)
    shape = ChatShape("m", 1, record, ByteVocabulary(), fields)
    shape.id = "chatcmpl-1"
    return ChatChunks(shape, **options)


@pytest.mark.parametrize("fields", [("reasoning_content", "reasoning"), ("reasoning",)])
@given(outputs=OUTPUTS, include_usage=st.booleans(), usage_in_choice=st.booleans())
def test_every_way_writes_the_same(
    fields: tuple[str, ...], outputs: list[Output], include_usage: bool, usage_in_choice: bool
) -> None:
    options = {"include_usage": include_usage, "usage_in_choice": usage_in_choice, "num_choices": 3}
    short, long = chunks_of(fields, **options), chunks_of(fields, **options)

    assert [long._render_all(output) for output in outputs] == [short.render(output) for output in outputs]


@pytest.mark.parametrize("fields", [("reasoning_content", "reasoning"), ("reasoning",)])
@given(texts=st.lists(st.tuples(st.booleans(), TEXTS), max_size=6))
def test_text_arrives_as_it_was_said(fields: tuple[str, ...], texts: list[tuple[bool, str]]) -> None:
    chunks = chunks_of(fields, include_usage=False)
    events: list[Event] = [ReasoningDelta(text) if thinks else ContentDelta(text) for thinks, text in texts]
    data = b"".join(chunks.render(Output(0, [event], None)) for event in events)

    frames = [json.loads(frame.removeprefix(b"data: ")) for frame in data.split(b"\n\n") if frame]
    deltas = [frame["choices"][0]["delta"] for frame in frames]
    said = list(chain.from_iterable(delta.items() for delta in deltas[1:]))
    assert [
        pair for thinks, text in texts for pair in ([(name, text) for name in fields] if thinks else [("content", text)])
    ] == said
