"""The wire shape of `POST /v1/chat/completions` requests.

Role: what a client may send, and the checks that need nothing but the request itself. Types are checked while the JSON is read;
this module adds contradictions. Tools stay plain dicts, as messages do: the model is shown exactly what they say.
Unknown fields are ignored; fields that would reach across tenants are refused.
Source: OpenAI API reference, chat completions; vLLM's extra sampling fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec

from server.errors import InvalidRequestError
from server.pauses import go_on
from server.protocol.decoding import decode
from server.protocol.messages import Message, check_messages
from server.protocol.ranges import check_ranges
from server.protocol.reasoning import reasoning_of
from server.protocol.sizes import MAX_JSON_BYTES, check_sizes
from server.protocol.tools import check_response_format, check_tool_choice, check_tools, named_choice


class StreamOptions(msgspec.Struct):
    """`include_usage`: a last chunk with the token counts."""

    include_usage: bool | None = None


class Thinking(msgspec.Struct):
    """Moonshot's switch for reasoning. `keep`: which reasoning of earlier answers the model sees again; K3 sees all."""

    type: Literal["enabled", "disabled"] | None = None
    effort: str | None = None
    keep: str | None = None


class ChatRequest(msgspec.Struct, kw_only=True):
    """A chat completion request, types checked. `check()` has run on every instance that `parse` returns."""

    model: str
    messages: list[Message]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    thinking: Thinking | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    ignore_eos: bool | None = None
    service_tier: Literal["auto", "default", "flex", "priority", "scale"] | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    extra_body: dict[str, Any] | None = None
    # Refused: each would reach across tenants, or asks for what we don't do in a way that can't be ignored.
    cache_salt: Any = msgspec.UNSET
    priority: Any = msgspec.UNSET
    kv_transfer_params: Any = msgspec.UNSET
    functions: Any = msgspec.UNSET
    function_call: Any = msgspec.UNSET

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with the token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def output_cap(self) -> int | None:
        """The client's own limit of generated tokens, None where there is none."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings, none of them empty."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def bias_by_id(self) -> dict[int, float] | None:
        """`logit_bias` with its keys as token ids."""
        return {int(key): value for key, value in self.logit_bias.items()} if self.logit_bias else None

    @property
    def all_tools(self) -> tuple[dict[str, Any], ...]:
        """All tools, those that system messages declare included, in the order in which the model is shown them."""
        return tuple(tool for _, tool in self.placed_tools())

    def placed_tools(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """As `all_tools`, each with its path."""
        for index, tool in enumerate(self.tools or ()):
            yield f"tools[{index}]", tool
        for number, message in enumerate(self.messages):
            for index, tool in enumerate(message.get("tools") or ()):
                yield f"messages[{number}].tools[{index}]", tool

    @property
    def named_tool(self) -> str | None:
        """The tool that must be called, where `tool_choice` names one."""
        return named_choice(self.tool_choice)

    @property
    def max_calls(self) -> int | None:
        """How many tools one answer may call: none under `tool_choice: none`, one without parallel calls, else any number."""
        if self.tool_choice == "none":
            return 0
        return 1 if self.parallel_tool_calls is False else None

    @property
    def answer_schema(self) -> dict[str, Any] | None:
        """The schema that the answer's text is to fit."""
        wanted = self.response_format or {}
        schema: dict[str, Any] | None = wanted["json_schema"]["schema"] if wanted.get("type") == "json_schema" else None
        return schema

    def check(self) -> None:
        """Ranges and contradictions; schemas are left out. Raises `InvalidRequestError` with the field's path."""
        _check_refused(self)
        check_ranges(self)
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError(
                "`stream_options` is set but `stream` is not true; remove it or stream", param="stream_options"
            )
        reasoning_of(self)
        names: set[str] = set()
        check_tools(self.tools or (), "tools", names)
        check_messages(self.messages, names)
        check_tool_choice(self.tool_choice, names)
        check_response_format(self.response_format)


FIELDS = ChatRequest.__struct_fields__
_DECODER = msgspec.json.Decoder(ChatRequest)


def parse(body: bytes, *, ignore_reserved: bool = False, pause: Callable[[], None] = go_on) -> ChatRequest:
    """The checked request of `body`. Raises `InvalidRequestError`. May run in any thread.

    `ignore_reserved`: fields that only the gateway may set are dropped instead of refused. `pause` is called every so often.
    """
    request = decode(body, _DECODER, pause)
    pause()
    if request.extra_body:
        request = decode(_unpacked(body), _DECODER, pause)
    if ignore_reserved:
        for name in RESERVED:
            setattr(request, name, msgspec.UNSET)
    request.check()
    pause()
    if len(body) > MAX_JSON_BYTES:
        check_sizes(request.messages, request.tools or (), request.response_format)
    return request


def _unpacked(body: bytes) -> bytes:
    """`body` with the fields of `extra_body` beside the others, which win unless they are null.

    Clients in Python take `extra_body` apart themselves; examples for them are pasted into JSON all the same.
    """
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    unpacked = msgspec.json.decode(fields.pop("extra_body"), type=dict[str, msgspec.Raw])
    unpacked.pop("extra_body", None)
    fields = {name: value for name, value in fields.items() if name not in unpacked or bytes(value) != b"null"}
    return msgspec.json.encode({**unpacked, **fields})


RESERVED = {
    "cache_salt": "it is derived by the gateway from the tenant; remove the field",
    "priority": "the gateway decides whose turn it is; remove the field, or send `service_tier`",
    "kv_transfer_params": "it is set by the gateway; remove the field",
}
_REFUSED = {
    **RESERVED,
    "functions": "it was replaced in the API; send `tools` instead",
    "function_call": "it was replaced in the API; send `tool_choice` instead",
}


def _check_refused(request: ChatRequest) -> None:
    for name, why in _REFUSED.items():
        if getattr(request, name) is not msgspec.UNSET:
            raise InvalidRequestError(f"`{name}` is not accepted: {why}", param=name)
