"""How much the model is to think, out of the several ways in which clients say it.

Order: `thinking` (Moonshot), then `reasoning_effort` (OpenAI), then `chat_template_kwargs` (vLLM). Unset means: think, at the
model's default effort `max`.
"""

from __future__ import annotations

from collections.abc import Mapping
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


_SWITCHES = ("thinking", "enable_thinking", "preserve_thinking")


def reasoning_of(wanted: Wanted) -> tuple[bool, Effort]:
    """Whether to think, and at which effort. Raises `InvalidRequestError` for what can't be meant, with its path."""
    options = wanted.chat_template_kwargs or {}
    _check_switches(options)
    switches = (options.get(name) for name in ("thinking", "enable_thinking"))
    thinking = next((switch for switch in switches if switch is not None), True)
    effort: Effort = DEFAULT_EFFORT
    chosen = ("chat_template_kwargs.thinking_effort", options.get("thinking_effort"))
    if wanted.reasoning_effort is not None:
        chosen = ("reasoning_effort", wanted.reasoning_effort)
    if wanted.thinking is not None:
        thinking = wanted.thinking.type != "disabled"
        if wanted.thinking.keep not in (None, "all"):
            raise InvalidRequestError(
                f"`thinking.keep` is `{shown(wanted.thinking.keep)}`; K3 is always shown all reasoning of earlier answers: "
                "send `all` or leave it out",
                param="thinking.keep",
            )
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


def _check_switches(options: Mapping[str, Any]) -> None:
    for name in _SWITCHES:
        if (value := options.get(name)) is not None and not isinstance(value, bool):
            param = f"chat_template_kwargs.{name}"
            raise InvalidRequestError(f"`{param}` is `{shown(value)}`; it must be true or false", param=param)
