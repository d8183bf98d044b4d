"""The published encoder's output, to the token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from server.prompts.base import Conversation
from server.prompts.kimi_k3 import KimiK3Format, segments_of
from server.prompts.segments import Segment

VECTORS_FILE = Path(__file__).parents[3] / "shared" / "k3" / "render_vectors.json"
VECTORS: dict[str, Any] = json.loads(VECTORS_FILE.read_bytes()) if VECTORS_FILE.is_file() else {}

O, C, S, E = 163587, 163588, 163589, 163586  # noqa: E741  open, close, sep, end of message
WITH_SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "c",
        "schema": {
            "type": "object",
            "properties": {"capital": {"type": "boolean"}},
            "required": ["capital"],
            "additionalProperties": False,
        },
    },
}
GREETING = [{"role": "system", "content": "你是一个简洁、准确的助手。"}, {"role": "user", "content": "你好"}]
CAPITAL = "请用 JSON 格式回答：北京是中国的首都吗？答案需要包含键 capital。"


def text_of(segments: list[Segment]) -> str:
    """The segments as one text."""
    return "".join(segment.text for segment in segments)


@pytest.mark.skipif(not VECTORS, reason="the vectors are not beside the checkout")
@pytest.mark.parametrize("name", VECTORS)
def test_text(name: str) -> None:
    assert VECTORS[name]["text"] == text_of(segments_of(Conversation(**VECTORS[name]["request"])))


@pytest.mark.skipif(not VECTORS, reason="the vectors are not beside the checkout")
@pytest.mark.parametrize("name", VECTORS)
async def test_token_ids(real_kimi: KimiK3Format, name: str) -> None:
    prompt = await real_kimi.render(Conversation(**VECTORS[name]["request"]))
    assert VECTORS[name]["token_ids"] == prompt.token_ids


@pytest.mark.parametrize(("thinking", "channel"), [(False, 12092), (True, 39964)])
async def test_worked_example(real_kimi: KimiK3Format, thinking: bool, channel: int) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    prompt = await real_kimi.render(Conversation(messages=messages, thinking=thinking, effort=None))
    expected = [O, 2778, 6244, 878, 2482, 1, S, 18699, C, 2778, S, E, O, 2778, 6244, 878, 69702, 1, S, O, channel, S]
    assert expected == prompt.token_ids
    assert thinking is prompt.in_reasoning


@pytest.mark.parametrize(
    ("conversation", "num_tokens"),
    [
        (Conversation(messages=[{"role": "user", "content": CAPITAL}], thinking=False), 36),
        (Conversation(messages=[{"role": "user", "content": CAPITAL}], thinking=False, response_format=WITH_SCHEMA), 119),
        (Conversation(messages=[{"role": "assistant", "content": "你好"}], effort="high"), 99),
        (Conversation(messages=GREETING, thinking=False), 36),
        (Conversation(messages=GREETING), 103),
    ],
)
async def test_counts_that_moonshot_published(real_kimi: KimiK3Format, conversation: Conversation, num_tokens: int) -> None:
    prompt = await real_kimi.render(conversation)
    assert num_tokens == len(prompt.token_ids) - prompt.num_stub_tokens


@pytest.mark.parametrize(("effort", "num_tokens"), [("low", 68), ("high", 68), ("max", 67)])  # `=max` is one token
async def test_length_of_the_effort_message(real_kimi: KimiK3Format, effort: Any, num_tokens: int) -> None:
    lengths = [len((await real_kimi.render(Conversation(messages=(), effort=chosen))).token_ids) for chosen in (effort, None)]
    assert num_tokens == lengths[0] - lengths[1]
