"""What the model sees, as text, and how it becomes token ids."""

from __future__ import annotations

from typing import Any

import pytest

from server.errors import InvalidRequestError
from server.prompts.base import Conversation
from server.prompts.kimi_k3 import KimiK3Format, segments_of
from server.prompts.segments import Segment
from server.vocabulary.base import Vocabulary
from server.vocabulary.byte import ByteVocabulary

STUB = '<|open|>message role="assistant"<|sep|><|open|>{}<|sep|>'
END = "<|close|>message<|sep|><|end_of_msg|>"


def text_of(segments: list[Segment]) -> str:
    """The segments as one text."""
    return "".join(segment.text for segment in segments)


def message(body: str, attributes: str) -> str:
    return f"<|open|>message {attributes}<|sep|>{body}{END}"


def text(*messages: dict[str, Any], thinking: bool = False, **options: Any) -> str:
    """The prompt's text, without the effort note and without the stub that every prompt but a continued one ends with."""
    whole = text_of(segments_of(Conversation(messages=messages, thinking=thinking, **({"effort": None} | options))))
    return whole.removesuffix(STUB.format("think" if thinking else "response"))


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_developer_is_the_system(role: str) -> None:
    assert message("be brief", 'role="system"') == text({"role": role, "content": "be brief"})


@pytest.mark.parametrize(
    ("content", "body"), [("", ""), (None, ""), ([], ""), ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab")]
)
def test_content(content: Any, body: str) -> None:
    assert message(body, 'role="user"') == text({"role": "user", "content": content})


@pytest.mark.parametrize("blank", [" ", "\n", "\t \n\n", "\u3000", "\u00a0"])
def test_blank_content_is_kept(blank: str) -> None:
    said: list[dict[str, Any]] = [{"role": role, "content": blank} for role in ("system", "user", "assistant")]
    said += [{"role": "tool", "tool_call_id": "x", "name": "f", "content": [{"type": "text", "text": blank}]}]
    assert 4 == text(*said).count(f"<|sep|>{blank}<|close|>")


def test_each_part_is_encoded_by_itself() -> None:
    parts = [{"type": "text", "text": "th"}, {"type": "text", "text": "ink"}]
    segments = segments_of(Conversation(messages=[{"role": "user", "content": parts}], effort=None))
    assert [Segment("th"), Segment("ink")] == [segment for segment in segments if segment.text in ("th", "ink")]


def test_a_missing_content_is_empty() -> None:
    assert message("", 'role="user"') == text({"role": "user"})


def test_an_earlier_answer_has_its_name_and_an_empty_name_is_none() -> None:
    response = "<|open|>response<|sep|>x<|close|>response<|sep|>"
    assert message(response, 'role="assistant" name="Ann"') == text({"role": "assistant", "name": "Ann", "content": "x"})
    assert message(response, 'role="assistant"') == text({"role": "assistant", "name": "", "content": "x"})


@pytest.mark.parametrize("role", ["system", "user"])
def test_names_are_escaped(role: str) -> None:
    assert message("x", f'role="{role}" name="a&amp;b&quot;&amp;lt;<"') == text(
        {"role": role, "name": 'a&b"&lt;<', "content": "x"}
    )


def test_an_image_placeholder_is_text() -> None:
    assert message("<|kimi_image_placeholder|>", 'role="user"') == text({"role": "user", "content": "<|kimi_image_placeholder|>"})


def test_an_image_is_refused_by_its_path() -> None:
    content = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    with pytest.raises(InvalidRequestError, match="text only") as caught:
        text({"role": "system", "content": "x"}, {"role": "user", "content": content})
    assert "messages[1].content[1]" == caught.value.param


def test_an_unknown_role_is_refused_by_its_path() -> None:
    with pytest.raises(InvalidRequestError, match="`critic`") as caught:
        text({"role": "critic", "content": "x"})
    assert "messages[0].role" == caught.value.param


@pytest.mark.parametrize(
    ("fields", "reasoning"),
    [
        ({"reasoning_content": "a"}, "a"),
        ({"reasoning": "b"}, "b"),
        ({"reasoning_content": "a", "reasoning": "b"}, "a"),
        ({"reasoning_content": "", "reasoning": "b"}, "b"),
        ({"reasoning_content": None, "reasoning": "b"}, "b"),
        ({"reasoning_content": None, "reasoning": None}, ""),
        ({"reasoning_content": " \n", "reasoning": "b"}, ""),
        ({"reasoning_content": " a "}, " a "),
        ({}, ""),
    ],
)
def test_reasoning_of_history(fields: dict[str, Any], reasoning: str) -> None:
    history = {"role": "assistant", "content": "c"} | fields
    response = "<|open|>response<|sep|>c<|close|>response<|sep|>"
    think = f"<|open|>think<|sep|>{reasoning}<|close|>think<|sep|>"
    assert message(think + response, 'role="assistant"') == text(history, thinking=True)
    assert message(response, 'role="assistant"') == text(history, thinking=False)


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("effort", ["low", "high", "max", None])
def test_effort_is_told_only_to_a_thinking_model(thinking: bool, effort: Any) -> None:
    told = f"`thinking_effort={effort}`" in text({"role": "user", "content": "x"}, thinking=thinking, effort=effort)
    assert (thinking and effort is not None) is told


def test_order_of_everything() -> None:
    whole = text_of(
        segments_of(
            Conversation(
                messages=[{"role": "system", "content": "SYS"}, {"role": "user", "content": "USER"}],
                tools=[{"type": "function", "function": {"name": "TOOL"}}],
                tool_choice="required",
                effort="low",
                response_format={"type": "json_object"},
            )
        )
    )
    marks = ["TOOL", "thinking_effort=low", "SYS", "USER", "tool_choice=required", "response_format=json_object", "think<|sep|>"]
    places = [whole.index(mark) for mark in marks]
    assert sorted(places) == places
    assert whole.endswith(STUB.format("think"))


@pytest.mark.parametrize("tools", [None, []])
def test_a_system_message_without_tools_is_a_system_message(tools: Any) -> None:
    assert message("x", 'role="system"') == text({"role": "system", "content": "x", "tools": tools})


@pytest.mark.parametrize("role", ["system", "developer"])
def test_tools_of_a_system_message_stand_in_its_place(role: str) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    whole = text({"role": "user", "content": "a"}, {"role": role, "tools": tools, "content": "unseen"})
    head, tail = whole.split(message("a", 'role="user"'))
    assert not head
    assert tail.startswith('<|open|>message role="system" type="tool-declare"<|sep|>## New Tools Available\n')
    assert tail.endswith(f'```json\n[{{"function":{{"name":"f"}},"type":"function"}}]\n```{END}')
    assert "unseen" not in tail


CONTINUED = {"role": "assistant", "content": "Once upon", "partial": True}


def test_a_partial_message_is_left_open() -> None:
    expected = message("x", 'role="user"') + '<|open|>message role="assistant"<|sep|><|open|>response<|sep|>Once upon'
    assert expected == text({"role": "user", "content": "x"}, CONTINUED)


def test_a_partial_message_has_thought() -> None:
    expected = (
        '<|open|>message role="assistant" name="Ann"<|sep|>'
        "<|open|>think<|sep|>why<|close|>think<|sep|><|open|>response<|sep|>Once upon"
    )
    assert expected == text(CONTINUED | {"reasoning_content": "why", "name": "Ann"}, thinking=True)


def test_notes_come_before_a_partial_message() -> None:
    whole = text(CONTINUED, tool_choice="none", response_format={"type": "json_object"})
    assert whole.index("tool_choice=none") < whole.index("response_format=json_object") < whole.index("Once upon")


@pytest.mark.parametrize("partial", [False, None, "yes", 1])
def test_only_true_makes_partial(partial: Any) -> None:
    assert text(CONTINUED | {"partial": False}) == text(CONTINUED | {"partial": partial})
    assert text(CONTINUED | {"partial": False}).endswith(END)


def test_partial_means_nothing_on_other_messages() -> None:
    user = {"role": "user", "content": "x"}
    assert text(CONTINUED | {"partial": False}, user) == text(CONTINUED, user | {"partial": True})


def test_a_partial_message_with_calls_is_refused() -> None:
    calls = [{"id": "a", "function": {"name": "f", "arguments": ""}}]
    with pytest.raises(InvalidRequestError, match="without `tool_calls`") as caught:
        text(CONTINUED | {"tool_calls": calls})
    assert "messages[0].tool_calls" == caught.value.param


@pytest.mark.parametrize("thinking", [False, True])
async def test_the_stub_is_the_opened_channel(kimi: KimiK3Format, vocabulary: Vocabulary, thinking: bool) -> None:
    prompt = await kimi.render(Conversation(messages=[{"role": "user", "content": "x"}], thinking=thinking))
    channel = "think" if thinking else "response"
    stub = [vocabulary.control["<|open|>"], *vocabulary.encode(channel), vocabulary.control["<|sep|>"]]
    assert stub == prompt.token_ids[-prompt.num_stub_tokens :]
    assert thinking is prompt.in_reasoning


async def test_k3s_stub_has_three_tokens(real_kimi: KimiK3Format) -> None:
    assert 3 == (await real_kimi.render(Conversation(messages=()))).num_stub_tokens


@pytest.mark.parametrize("thinking", [False, True])
async def test_a_continued_message_has_no_stub(kimi: KimiK3Format, vocabulary: Vocabulary, thinking: bool) -> None:
    prompt = await kimi.render(Conversation(messages=[CONTINUED], thinking=thinking))
    assert (0, False) == (prompt.num_stub_tokens, prompt.in_reasoning)
    assert vocabulary.encode("Once upon") == prompt.token_ids[-len(vocabulary.encode("Once upon")) :]


def test_a_vocabulary_of_another_family_is_refused() -> None:
    class Other(ByteVocabulary):
        @property
        def control(self) -> dict[str, int]:
            return {"<|open|>": 1, "<|im_end|>": 2}

    with pytest.raises(ValueError, match=r"no control tokens .*<\|close\|>"):
        KimiK3Format(Other())
