"""How much the model is to think, out of the several ways in which clients say it.

Order: `thinking` (Moonshot), then `reasoning_effort` (OpenAI), then `chat_template_kwargs` (vLLM). Unset means: think, at the
model's default effort `max`.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

from server.errors import InvalidRequestError
from server.quoting import shown

Effort = Literal["low", "high", "max"]
DEFAULT_EFFORT: Effort = "max"

# The model knows three efforts; names from other APIs go to the nearest. Documented in docs/api.md.
_EFFORTS: dict[str, Effort | None] = {
    "none": None, "minimal": "low", "low": "low", "medium": "high", "high": "high", "xhigh": "max", "max": "max",
}  # fmt: skip


class Wanted(Protocol):
    """The fields of a request that speak of reasoning."""

    reasoning_effort: str | None
    thinking: Any
    chat_template_kwargs: dict[str, Any] | None


def reasoning_of(wanted: Wanted) -> tuple[bool, Effort]:
    """Whether to think, and at which effort. Raises `InvalidRequestError` for an effort nobody knows."""
    options = wanted.chat_template_kwargs or {}
    thinking = bool(options.get("thinking", options.get("enable_thinking", True)))
    effort: Effort = DEFAULT_EFFORT
    chosen = ("chat_template_kwargs.thinking_effort", options.get("thinking_effort"))
    if wanted.reasoning_effort is not None:
        chosen = ("reasoning_effort", wanted.reasoning_effort)
    if wanted.thinking is not None:
        thinking = wanted.thinking.type == "enabled"
        if wanted.thinking.effort is not None:
            chosen = ("thinking.effort", wanted.thinking.effort)
    param, name = chosen
    if name is not None:
        if not isinstance(name, str) or name not in _EFFORTS:
            known = ", ".join(f"`{effort}`" for effort in _EFFORTS)
            raise InvalidRequestError(f"`{param}` is `{shown(name)}`; it must be one of {known}", param=param)
        level = _EFFORTS[name]
        if level is None:
            thinking = False
        else:
            effort = level
    return thinking, effort
