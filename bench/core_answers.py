"""What the fake engine cores say: prose as content or as reasoning, or a call whose argument is that prose."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Final

from bench.core_plan import KINDS
from server.vocabulary.base import Vocabulary

TEXT: Final = (
    "The gateway takes a request, renders the prompt, asks the engine for tokens and sends every new piece of text back while "
    "the rest is still being made. Several tokens may come at once where drafts are checked in one forward pass. "
) * 4
TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "write_note",
        "description": "Write a note.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    },
}
_CALL: Final = 'open call tool="write_note" index="1"'
_BEFORE: Final = ("close response", "open tools", _CALL, 'open argument key="text" type="string"')

_AFTER: Final = ("close argument", "close call", "close tools")


@dataclass
class Answer:
    """`body` is repeated until the answer is as long as was asked for. `ends`: whether the model ends it itself."""

    before: list[int]
    body: list[int]
    after: list[int]
    ends: bool

    def token_ids(self, num_tokens: int) -> list[int]:
        """All of an answer of exactly `num_tokens`, shape (num_tokens,)."""
        num_body = num_tokens - len(self.before) - len(self.after)
        if num_body < 0:
            return list(itertools.islice(itertools.cycle(self.body), num_tokens))
        return [*self.before, *itertools.islice(itertools.cycle(self.body), num_body), *self.after]


def answers_of(vocabulary: Vocabulary) -> list[Answer]:
    """The answers to prompts that end in an open channel, as `KINDS` has them."""
    text = vocabulary.encode(TEXT)
    plain = Answer([], text, [], ends=False)
    before = [token_id for marker in _BEFORE for token_id in _marker(vocabulary, marker)]
    after = [token_id for marker in _AFTER for token_id in _marker(vocabulary, marker)]
    after.append(vocabulary.control["<|end_of_msg|>"])
    kinds = {"text": plain, "reasoning": plain, "tools": Answer(before, text, after, ends=True)}
    return [kinds[kind] for kind in KINDS]


def _marker(vocabulary: Vocabulary, marker: str) -> list[int]:
    verb, header = marker.split(" ", 1)
    return [vocabulary.control[f"<|{verb}|>"], *vocabulary.encode(header), vocabulary.control["<|sep|>"]]
