"""Long conversations, as agents have them: questions, reasoning, tool calls, results and answers.

No text comes twice. The words are English ones and code, so that a vocabulary cuts them as it cuts what people send.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

CHARS_PER_TOKEN: Final = 4.9
"""Of K3's vocabulary and these texts; enough to make a conversation of about the length that is asked for."""

_WORDS: Final = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one were all
their there been if more when will would who so no request gateway tokens prompt server answer function return value error
conversation context message channel reasoning vocabulary measure describe configuration deployment repository continuous
international understanding however therefore because 128 2026 0.75 https://example.org/a/b?c=1 {"key": [1, 2, 3]}
def render(self, text): for index, piece in enumerate(pieces): if piece is None: raise ValueError("none") self._cache[key]
"""
_PARAGRAPH_CHARS: Final = 700
_NUM_PARAGRAPHS: Final = 300
_TURN: Final = {"question": 900, "reasoning": 1400, "argument": 160, "result": 4200, "answer": 1100}
"""Characters of each part of a turn."""

CHARS_PER_TURN: Final = sum(_TURN.values())


class Talk:
    """A conversation that grows by turns. `mark` is in every text: with another one nothing of it was ever seen."""

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self._paragraphs = [self._paragraph() for _ in range(_NUM_PARAGRAPHS)]

    def messages(self, num_turns: int, mark: str = "") -> list[dict[str, Any]]:
        """The first `num_turns` turns, and the question of the one after them."""
        found: list[dict[str, Any]] = [{"role": "system", "content": self._text(f"{mark} system", 2000)}]
        for number in range(num_turns):
            found += self.turn(number, mark)
        return [*found, self.question(num_turns, mark)]

    def question(self, number: int, mark: str = "") -> dict[str, Any]:
        """What the user asks in turn `number`."""
        return {"role": "user", "content": self._text(f"{mark} question {number}", _TURN["question"])}

    def turn(self, number: int, mark: str = "") -> list[dict[str, Any]]:
        """The messages of turn `number`."""
        said = {part: self._text(f"{mark} {part} {number}", num_chars) for part, num_chars in _TURN.items()}
        call = {"name": "search", "arguments": json.dumps({"query": said["argument"], "page": number})}
        return [
            self.question(number, mark),
            {
                "role": "assistant",
                "reasoning_content": said["reasoning"],
                "content": "",
                "tool_calls": [{"id": f"call_{number}", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": f"call_{number}", "content": said["result"]},
            {"role": "assistant", "content": said["answer"]},
        ]

    def _text(self, name: str, num_chars: int) -> str:
        """The same for the same name."""
        at = random.Random(name)
        pieces = [name]
        while num_chars > 0:
            pieces.append(at.choice(self._paragraphs)[:num_chars])
            num_chars -= _PARAGRAPH_CHARS
        return " ".join(pieces)

    def _paragraph(self) -> str:
        words = self._random.choices(_WORDS.split(), k=_PARAGRAPH_CHARS // 4)
        return " ".join(words)[:_PARAGRAPH_CHARS]


def body_of(messages: Sequence[Mapping[str, Any]]) -> bytes:
    """A request that asks for one token."""
    wanted = {"model": "default", "messages": messages, "max_tokens": 1, "stream": True, "ignore_eos": True}
    return json.dumps(wanted, ensure_ascii=False).encode()


def num_turns_of(num_tokens: int) -> int:
    """Turns of a conversation of about so many tokens."""
    return max(0, round(num_tokens * CHARS_PER_TOKEN / CHARS_PER_TURN))
