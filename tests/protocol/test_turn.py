"""Where a conversation stands."""

from __future__ import annotations

from typing import Any

import pytest

from server.protocol.turn import Turn, turn_of


def said(role: str, content: Any = "x") -> Any:
    return {"role": role, "content": content}


PARTS = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:"}}, {"type": "text", "text": "b"}]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([said("user", "hi")], Turn("hi", "user", "hi", 0)),
        ([said("user", PARTS)], Turn("ab", "user", "ab", 0)),
        ([said("system", "s")], Turn("", "system", "s", 0)),
        ([said("user", "q"), said("assistant", None), said("tool", "1"), said("tool", PARTS)], Turn("q", "tool", "ab", 2)),
        ([said("user", "q"), said("assistant"), said("tool"), said("system", "s")], Turn("q", "system", "s", 1)),
        ([said("user", "q"), said("assistant"), said("tool"), said("user", "r")], Turn("r", "user", "r", 0)),
        ([said("user", "q"), said("tool"), said("assistant", None)], Turn("q", "assistant", "", 1)),
        ([said("tool", "1"), said("tool", "2")], Turn("", "tool", "2", 2)),
    ],
)
def test_the_last_messages_tell(messages: list[Any], expected: Turn) -> None:
    assert expected == turn_of(messages)
