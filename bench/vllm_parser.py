"""vLLM's own parser of Kimi K3's answers, over one of our vocabularies: what ours is compared with, in results and in cost.

Needs vLLM's Python code, no engine and no model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from server.vocabulary.base import Vocabulary
from server.vocabulary.utf8 import Utf8Decoder

_TOOLS = [{"type": "function", "function": {"name": "any", "parameters": {"type": "object"}}}]


class _Tokenizer:
    """As much of a tokenizer as the parsers ask for: the ids of markers."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._names = re.compile("(" + "|".join(map(re.escape, vocabulary.control)) + ")")

    def encode(self, text: str, **_: Any) -> list[int]:
        control = self._vocabulary.control
        parts = [part for part in self._names.split(text) if part]
        return [i for part in parts for i in ([control[part]] if part in control else self._vocabulary.encode(part))]

    def get_vocab(self) -> dict[str, int]:
        return dict(self._vocabulary.control)


@dataclass
class VllmAnswer:
    """What vLLM makes of an answer. `calls`: name and arguments, as text."""

    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)


class VllmParser:
    """One answer. `tools`: whether the request declares any; without, vLLM looks for no calls."""

    def __init__(self, vocabulary: Vocabulary, *, thinking: bool, tools: bool = True) -> None:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.parser.parser_manager import ParserManager

        self._vocabulary = vocabulary
        tokenizer = _Tokenizer(vocabulary)
        self._prompt = tokenizer.encode(f"<|open|>{'think' if thinking else 'response'}<|sep|>")
        made_of = {"messages": [{"role": "user", "content": "?"}], "model": "k3", **({"tools": _TOOLS} if tools else {})}
        self._request = ChatCompletionRequest.model_validate(made_of)
        parser_class = ParserManager.get_parser("kimi_k3", "kimi_k3", enable_auto_tools=True)
        self._parser = parser_class(tokenizer, chat_template_kwargs={"thinking": thinking})
        self._decoder = Utf8Decoder()
        self._pieces = vocabulary.pieces

    def feed(self, token_ids: Sequence[int], *, finished: bool = False) -> Any:
        """The next tokens, as vLLM's server gives them to its parser: with their text. Returns its `DeltaMessage`, or None."""
        text = self._decoder.feed(b"".join([self._pieces[token_id] for token_id in token_ids]))
        return self._parser.parse_delta(text, list(token_ids), self._request, self._prompt, finished=finished)

    def whole(self, token_ids: Sequence[int]) -> VllmAnswer:
        """The answer as it is collected."""
        text = self._vocabulary.decode(token_ids)
        reasoning, content, calls = self._parser.parse(text, self._request, enable_auto_tools=True)
        return VllmAnswer(reasoning or "", content or "", [(call.name, call.arguments) for call in calls or ()])

    def streamed(self, steps: Sequence[Sequence[int]]) -> VllmAnswer:
        """The answer as a client puts it together from the stream."""
        answer = VllmAnswer()
        for number, step in enumerate(steps, start=1):
            delta = self.feed(step, finished=number == len(steps))
            if delta is None:
                continue
            answer.reasoning += delta.reasoning or ""
            answer.content += delta.content or ""
            for call in delta.tool_calls or ():
                if call.index == len(answer.calls):
                    answer.calls.append(("", ""))
                name, arguments = answer.calls[call.index]
                more = call.function if isinstance(call.function, dict) else call.function.model_dump()
                answer.calls[call.index] = (name + (more.get("name") or ""), arguments + (more.get("arguments") or ""))
        return answer
