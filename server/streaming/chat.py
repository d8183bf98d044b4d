"""Events -> chat completion chunks, or one chat completion.

Role: step 8 for `POST /v1/chat/completions`. The constant bytes of a chunk are built once a request; per event only the text is
escaped. Invariant: a streamed and a collected answer carry the same text, calls, finish reason and usage.
Source: OpenAI API reference, chat completion object and chunk object.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Protocol

import orjson

from server.engine.base import TokenLogprob
from server.events import ContentDelta, Finish, ReasoningDelta, ToolCallArguments, ToolCallCut, ToolCallEnd, ToolCallStart
from server.record import GenerationRecord
from server.streaming.sse import DONE, Write
from server.vocabulary.base import Vocabulary


class ChoiceOutput(Protocol):
    """What a choice said; `server.generation.Output` is one."""

    choice: int
    events: list[Any]
    logprobs: list[TokenLogprob] | None


Outputs = AsyncGenerator[ChoiceOutput, None]


class ChatShape:
    """What all chunks and bodies of one request share. `reasoning_fields`: the names under which reasoning is sent."""

    def __init__(
        self, model: str, created: int, record: GenerationRecord, vocabulary: Vocabulary, fields: tuple[str, ...]
    ) -> None:
        self.id = f"chatcmpl-{secrets.token_hex(16)}"
        self.model = model
        self.created = created
        self.record = record
        self.vocabulary = vocabulary
        self.reasoning_fields = fields

    def usage(self) -> dict[str, Any]:
        """The token counts of the ended generation."""
        record = self.record
        return {
            "prompt_tokens": record.num_prompt_tokens,
            "completion_tokens": record.num_output_tokens,
            "total_tokens": record.num_prompt_tokens + record.num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": record.num_cached_prompt_tokens},
            "completion_tokens_details": {"reasoning_tokens": record.num_reasoning_tokens},
        }

    def logprobs(self, tokens: list[TokenLogprob]) -> dict[str, Any]:
        """Log probabilities of content tokens in the API's form."""
        return {"content": [self._logprob(token) for token in tokens], "refusal": None}

    def _logprob(self, token: TokenLogprob) -> dict[str, Any]:
        top = [self._token(token_id, logprob) for token_id, logprob in token.top]
        return {**self._token(token.token_id, token.logprob), "top_logprobs": top}

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        piece = self.vocabulary.pieces[token_id]
        # JSON has no minus infinity; OpenAI's documented stand-in for a vanishing probability is -9999.
        return {"token": piece.decode("utf-8", "replace"), "logprob": max(logprob, -9999.0), "bytes": list(piece)}


def _escaped(text: str) -> bytes:
    """`text` as JSON. Line ends of Unicode are escaped: some clients split the stream at them."""
    data = orjson.dumps(text)
    if text.isascii():
        return data
    return data.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029").replace(b"\xc2\x85", b"\\u0085")


def new_call_id() -> str:
    """A tool-call id that no other call of any conversation has."""
    return f"call_{secrets.token_hex(12)}"


class ChatChunks:
    """Writes the frames of a streamed answer.

    `include_usage`: the token counts come in a last chunk of their own; `usage_in_choice`: they come, too, inside the choice
    that ends last, where Kimi's own clients look for them.
    """

    def __init__(self, shape: ChatShape, *, include_usage: bool, usage_in_choice: bool = False, num_choices: int = 1) -> None:
        self._shape = shape
        self._include_usage = include_usage
        self._num_unfinished = num_choices if usage_in_choice else 0
        head = {"id": shape.id, "object": "chat.completion.chunk", "created": shape.created, "model": shape.model}
        self._head = b"data: " + orjson.dumps(head)[:-1] + b',"choices":['
        self._tail = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._end = b'},"logprobs":null,"finish_reason":null}]' + self._tail
        self._reasoning_again = b"".join(b',"%s":' % name.encode() for name in shape.reasoning_fields[1:])
        self._choices: dict[int, tuple[bytes, bytes, bytes]] = {}

    async def frames(self, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """One piece of bytes for each output that has something to say, the usage where wanted, and `[DONE]`."""
        async with aclosing(outputs):
            async for output in outputs:
                if data := self.render(output):
                    yield data
        if self._include_usage:
            yield self._head + b'],"usage":' + orjson.dumps(self._shape.usage()) + b"}\n\n" + DONE
        else:
            yield DONE

    def send(self, write: Write, output: ChoiceOutput) -> None:
        """The frames of one output, at once."""
        if data := self.render(output):
            write(data)

    def render(self, output: ChoiceOutput) -> bytes:
        """The frames of one output, joined."""
        if len(output.events) == 1 and not output.logprobs and (choice := self._choices.get(output.choice)) is not None:
            event = output.events[0]  # nearly all outputs are one piece of text
            if type(event) is ContentDelta:
                return choice[2] + _escaped(event.text) + self._end
            if type(event) is ReasoningDelta:
                return self._reasoning(choice[1], event.text)
        return self._render_all(output)

    def _render_all(self, output: ChoiceOutput) -> bytes:
        """As `render`, whatever there is."""
        choice = self._choices.get(output.choice)
        frames = []
        if choice is None:
            choice = self._open(output.choice)
            frames.append(choice[0] + b'"role":"assistant","content":""' + self._end)
        delta, reasoning_key, content_key = choice
        if output.logprobs:
            end = b'},"logprobs":' + orjson.dumps(self._shape.logprobs(output.logprobs)) + b',"finish_reason":null}]' + self._tail
        else:
            end = self._end
        for event in output.events:
            if type(event) is ContentDelta:
                frames.append(content_key + _escaped(event.text) + end)
                end = self._end
            elif type(event) is ReasoningDelta:
                frames.append(self._reasoning(reasoning_key, event.text))
            else:
                frames.append(self._other(delta, event))
        return frames[0] if len(frames) == 1 else b"".join(frames)

    def _open(self, index: int) -> tuple[bytes, bytes, bytes]:
        """The constant bytes of choice `index`: start of a delta, of a reasoning delta and of a content delta."""
        delta = self._head + b'{"index":%d,"delta":{' % index
        fields = self._shape.reasoning_fields
        self._choices[index] = (delta, delta + b'"%s":' % fields[0].encode(), delta + b'"content":')
        return self._choices[index]

    def _reasoning(self, key: bytes, text: str) -> bytes:
        escaped = _escaped(text)
        if self._reasoning_again:
            return key + escaped + self._reasoning_again + escaped + self._end
        return key + escaped + self._end

    def _other(self, delta: bytes, event: object) -> bytes:
        if isinstance(event, ToolCallArguments):
            call = b'"tool_calls":[{"index":%d,"function":{"arguments":' % event.index
            return delta + call + _escaped(event.fragment) + b"}}]" + self._end
        if isinstance(event, ToolCallStart):
            function = {"name": event.name, "arguments": ""}
            call_start = {"index": event.index, "id": new_call_id(), "type": "function", "function": function}
            return delta + b'"tool_calls":[' + orjson.dumps(call_start) + b"]" + self._end
        if isinstance(event, Finish):
            self._num_unfinished -= 1
            usage = b',"usage":' + orjson.dumps(self._shape.usage()) if self._num_unfinished == 0 else b""
            return delta + b'},"logprobs":null,"finish_reason":"%s"%s}]' % (event.reason.value.encode(), usage) + self._tail
        return b""


class ChatBody:
    """Collects a whole answer."""

    def __init__(self, shape: ChatShape, num_choices: int) -> None:
        self._shape = shape
        self._choices = [_Choice() for _ in range(num_choices)]

    def add(self, output: ChoiceOutput) -> None:
        """What comes next."""
        self._choices[output.choice].add(output)

    async def collect(self, outputs: Callable[[], Outputs]) -> bytes:
        """The JSON body of everything that `outputs()` says, and of what is added meanwhile."""
        async with aclosing(outputs()) as stream:
            async for output in stream:
                self.add(output)
        shape = self._shape
        return orjson.dumps(
            {
                "id": shape.id,
                "object": "chat.completion",
                "created": shape.created,
                "model": shape.model,
                "choices": [choice.body(index, shape) for index, choice in enumerate(self._choices)],
                "usage": shape.usage(),
            }
        )


class _Choice:
    """One choice of a collected answer."""

    def __init__(self) -> None:
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, dict[str, Any]] = {}
        self.fragments: dict[int, list[str]] = {}
        self.logprobs: list[TokenLogprob] | None = None
        self.finish: str | None = None

    def add(self, output: ChoiceOutput) -> None:
        if output.logprobs is not None:
            self.logprobs = (self.logprobs or []) + output.logprobs
        for event in output.events:
            if isinstance(event, ContentDelta):
                self.content.append(event.text)
            elif isinstance(event, ReasoningDelta):
                self.reasoning.append(event.text)
            elif isinstance(event, ToolCallArguments):
                self.fragments[event.index].append(event.fragment)
            elif isinstance(event, ToolCallStart):
                self.calls[event.index] = {"id": new_call_id(), "type": "function", "function": {"name": event.name}}
                self.fragments[event.index] = []
            elif isinstance(event, ToolCallEnd):
                self.calls[event.index]["function"]["arguments"] = "".join(self.fragments.pop(event.index))
            elif isinstance(event, ToolCallCut):
                self.calls.pop(event.index, None)
            elif isinstance(event, Finish):
                self.finish = event.reason.value

    def body(self, index: int, shape: ChatShape) -> dict[str, Any]:
        content = "".join(self.content)
        message: dict[str, Any] = {"role": "assistant", "content": content if content or not self.calls else None}
        if self.reasoning:
            message.update(dict.fromkeys(shape.reasoning_fields, "".join(self.reasoning)))
        if self.calls:
            message["tool_calls"] = list(self.calls.values())
        logprobs = None if self.logprobs is None else shape.logprobs(self.logprobs)
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": self.finish}
