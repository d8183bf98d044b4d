"""The rules of hosted K3 for sampling, where a deployment wants them.

Role: between a checked request and the engine, by `models.NAME.sampling`: `open` changes nothing, `moonshot` refuses what hosted
K3 refuses, `pin` takes any value and uses K3's own. Pure: requests are not changed, new ones are returned.
Source: Moonshot's API reference for Kimi K3 and what its vendor verifier expects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from server.errors import InvalidRequestError
from server.quoting import shown

if TYPE_CHECKING:
    from server.protocol.chat import ChatRequest

SamplingRule = Literal["open", "moonshot", "pin"]

MAX_STOP_STRINGS: Final = 5
MAX_STOP_BYTES: Final = 32

FIXED: Final[dict[str, Any]] = {
    "temperature": 1.0,
    "top_p": 0.95,
    "n": 1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": None,
    "ignore_eos": False,
}
"""What K3 is sampled with. The fields that K3's API does not have are neutral."""

_SAME_AS_FIXED: Final[dict[str, tuple[Any, ...]]] = {"top_k": (-1,), "logit_bias": ({},)}


def apply_sampling_rule(request: ChatRequest, rule: SamplingRule) -> tuple[ChatRequest, tuple[str, ...]]:
    """The request as it is to be sampled under `rule`, and the names of the fields whose values were ignored, in `FIXED`'s order.

    Raises `InvalidRequestError` for what `moonshot` does not take.
    """
    if rule == "open":
        return request, ()
    if rule == "pin":
        ignored = tuple(name for name in FIXED if not _is_fixed(name, getattr(request, name)))
        return msgspec.structs.replace(request, **FIXED), ignored
    _check(request)
    # Left out, it is the model's own default, which K3's checkpoint has at 1.0, too.
    return msgspec.structs.replace(request, **{**FIXED, "temperature": request.temperature}), ()


def _is_fixed(name: str, value: Any) -> bool:
    return value is None or value == FIXED[name] or value in _SAME_AS_FIXED.get(name, ())


def _check(request: ChatRequest) -> None:
    """Raises `InvalidRequestError` for the first field whose value hosted K3 does not take."""
    if request.temperature is not None and not 0 <= request.temperature <= 1:
        raise InvalidRequestError(
            f"`temperature` is `{shown(request.temperature)}`; for this model it must be between 0 and 1", param="temperature"
        )
    for name, fixed in FIXED.items():
        value = getattr(request, name)
        if name != "temperature" and not _is_fixed(name, value):
            wanted = "be left out" if fixed is None else f"be {shown(fixed)} or left out"
            raise InvalidRequestError(f"`{name}` is `{shown(value)}`; for this model it must {wanted}", param=name)
    stop = request.stop_strings
    if len(stop) > MAX_STOP_STRINGS:
        raise InvalidRequestError(
            f"`stop` has {len(stop)} strings; for this model at most {MAX_STOP_STRINGS} are allowed", param="stop"
        )
    for index, text in enumerate(stop):
        if (num_bytes := len(text.encode())) > MAX_STOP_BYTES:
            param = "stop" if isinstance(request.stop, str) else f"stop[{index}]"
            raise InvalidRequestError(
                f"`{param}` has {num_bytes} bytes; for this model at most {MAX_STOP_BYTES} are allowed", param=param
            )
