"""The wire shape of `POST /v1/chat/completions` requests.

Role: what a client may send, and the checks that need nothing but the request itself. Types are checked while the JSON is read;
this module adds ranges and contradictions. Tools stay plain dicts, as messages do: the model is shown exactly what they say.
Unknown fields are ignored; fields that would reach across tenants are refused.
Source: OpenAI API reference, chat completions; vLLM's extra sampling fields.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from server.errors import InvalidRequestError
from server.protocol.decoding import decode
from server.protocol.messages import Message, check_messages
from server.protocol.sizes import MAX_JSON_BYTES, check_sizes
from server.protocol.tools import check_response_format, check_tool_choice, check_tools, tool_names
from server.quoting import shown

MAX_CHOICES = 128
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1024
MAX_ALL_STOP_CHARS = 2048
MAX_TOP_LOGPROBS = 20
MAX_BIASES = 1024


class StreamOptions(msgspec.Struct):
    """`include_usage`: a last chunk with the token counts."""

    include_usage: bool | None = None


class Thinking(msgspec.Struct):
    """Moonshot's switch for reasoning."""

    type: Literal["enabled", "disabled"] = "enabled"
    effort: str | None = None


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
    user: str | None = None
    metadata: dict[str, Any] | None = None
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
    def declared_tool_names(self) -> tuple[str, ...]:
        """Names of all tools, those that system messages declare included."""
        late = (tool for message in self.messages for tool in message.get("tools") or ())
        return tool_names([*(self.tools or ()), *late])

    def check(self) -> None:
        """Ranges and contradictions. Raises `InvalidRequestError` with the field's path."""
        _check_refused(self)
        _check_ranges(self)
        _check_stop(self)
        _check_logit_bias(self)
        names: set[str] = set()
        check_tools(self.tools or (), "tools", names)
        check_messages(self.messages, names)
        check_tool_choice(self.tool_choice, names)
        check_response_format(self.response_format)


FIELDS = ChatRequest.__struct_fields__
_DECODER = msgspec.json.Decoder(ChatRequest)


def parse(body: bytes) -> ChatRequest:
    """The checked request of `body`. Raises `InvalidRequestError`."""
    request = decode(body, _DECODER)
    request.check()
    if len(body) > MAX_JSON_BYTES:
        check_sizes(request.messages, request.tools or (), request.response_format)
    return request


_REFUSED = {
    "cache_salt": "it is derived by the gateway from the tenant; remove the field",
    "priority": "it is set by the gateway; remove the field",
    "kv_transfer_params": "it is set by the gateway; remove the field",
    "functions": "it was replaced in the API; send `tools` instead",
    "function_call": "it was replaced in the API; send `tool_choice` instead",
}

# field: (least, most), both allowed; None is no bound
_RANGES: dict[str, tuple[float | None, float | None]] = {
    "n": (1, MAX_CHOICES),
    "max_tokens": (1, None),
    "max_completion_tokens": (1, None),
    "temperature": (0, 2),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "top_k": (-1, 2**31 - 1),
    "top_logprobs": (0, MAX_TOP_LOGPROBS),
    "seed": (-(2**63), 2**63 - 1),
}


def _check_refused(request: ChatRequest) -> None:
    for name, why in _REFUSED.items():
        if getattr(request, name) is not msgspec.UNSET:
            raise InvalidRequestError(f"`{name}` is not accepted: {why}", param=name)


def _check_ranges(request: ChatRequest) -> None:
    for name, (least, most) in _RANGES.items():
        value = getattr(request, name)
        if value is None:
            continue
        if (least is not None and value < least) or (most is not None and value > most):
            bounds = f"between {least} and {most}" if most is not None else f"at least {least}"
            raise InvalidRequestError(f"`{name}` is `{shown(value)}`; it must be {bounds}", param=name)
    if request.top_p is not None and not 0 < request.top_p <= 1:
        raise InvalidRequestError(f"`top_p` is `{request.top_p}`; it must be above 0 and at most 1", param="top_p")
    if request.repetition_penalty is not None and not 0 < request.repetition_penalty <= 10:
        raise InvalidRequestError(
            f"`repetition_penalty` is `{request.repetition_penalty}`; it must be above 0 and at most 10",
            param="repetition_penalty",
        )
    if None not in (request.max_tokens, request.max_completion_tokens) and request.max_tokens != request.max_completion_tokens:
        raise InvalidRequestError(
            f"`max_tokens` is `{shown(request.max_tokens)}` and `max_completion_tokens` is "
            f"`{shown(request.max_completion_tokens)}`; send one of them",
            param="max_tokens",
        )
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequestError("`top_logprobs` is set but `logprobs` is not; set `logprobs` to true", param="top_logprobs")
    if request.stream_options is not None and not request.stream:
        raise InvalidRequestError("`stream_options` is set but `stream` is not true; remove it or stream", param="stream_options")


def _check_stop(request: ChatRequest) -> None:
    stop = request.stop_strings
    if len(stop) > MAX_STOP_STRINGS:
        raise InvalidRequestError(f"`stop` has {len(stop)} strings; at most {MAX_STOP_STRINGS} are allowed", param="stop")
    for index, text in enumerate(stop):
        param = "stop" if isinstance(request.stop, str) else f"stop[{index}]"
        if not text:
            raise InvalidRequestError(f"`{param}` is empty; an empty string would stop everything, remove it", param=param)
        if len(text) > MAX_STOP_CHARS:
            raise InvalidRequestError(f"`{param}` has {len(text)} characters; at most {MAX_STOP_CHARS} are allowed", param=param)
    if (num_chars := sum(map(len, stop))) > MAX_ALL_STOP_CHARS:
        raise InvalidRequestError(
            f"`stop` has {num_chars} characters in all; at most {MAX_ALL_STOP_CHARS} are allowed", param="stop"
        )


def _check_logit_bias(request: ChatRequest) -> None:
    if len(request.logit_bias or ()) > MAX_BIASES:
        raise InvalidRequestError(f"`logit_bias` has more than {MAX_BIASES} tokens; send fewer", param="logit_bias")
    for key, value in (request.logit_bias or {}).items():
        param = f"logit_bias.{key}"
        if not (key.isascii() and key.isdigit()) or len(key) > 9:
            raise InvalidRequestError(
                f'`logit_bias` has the key `{shown(key)}`; keys are token ids, as in `"1234"`', param="logit_bias"
            )
        if not -100 <= value <= 100:
            raise InvalidRequestError(f"`{param}` is `{value}`; it must be between -100 and 100", param=param)
