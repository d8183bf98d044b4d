"""Which values the sampling fields of a request may have, whatever the model.

Role: part of `ChatRequest.check`. The bounds are the engine's, so that none of these fields can fail there.
Source: vLLM's checks of its sampling parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from server.errors import InvalidRequestError
from server.quoting import shown

if TYPE_CHECKING:
    from server.protocol.chat import ChatRequest

MAX_CHOICES: Final = 128
MAX_STOP_STRINGS: Final = 16
MAX_STOP_CHARS: Final = 1024
MAX_ALL_STOP_CHARS: Final = 2048
MAX_TOP_LOGPROBS: Final = 20
MAX_BIASES: Final = 1024

# field: (least, most), both allowed; None is no bound
_RANGES: Final[dict[str, tuple[float | None, float | None]]] = {
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


def check_ranges(request: ChatRequest) -> None:
    """Raises `InvalidRequestError` with the field's path."""
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
    _check_stop(request)
    _check_logit_bias(request)


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
