"""How much the model is to think, out of the several ways in which clients say it.

Order: `thinking` (Moonshot), then `reasoning_effort` (OpenAI), then `chat_template_kwargs` (vLLM), each for what it says: a
switch whether, an effort how much, and the effort `none` both. Unset means: think, at the model's default effort `max`.
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
    if options:
        _check_switches(options)
    chosen = ("chat_template_kwargs.thinking_effort", options.get("thinking_effort"))
    if wanted.reasoning_effort is not None:
        chosen = ("reasoning_effort", wanted.reasoning_effort)
    switch: bool | None = None
    if wanted.thinking is not None:
        _check_kept(wanted.thinking.keep)
        if wanted.thinking.type is not None:
            switch = wanted.thinking.type == "enabled"
        if wanted.thinking.effort is not None:
            chosen = ("thinking.effort", wanted.thinking.effort)
    level = _level(*chosen)
    if switch is None and chosen[1] is not None and level is None:
        switch = False
    if switch is None:
        switch = options.get("thinking")
    if switch is None:
        switch = options.get("enable_thinking")
    return switch is not False, level or DEFAULT_EFFORT


def _level(param: str, name: Any) -> Effort | None:
    """The model's effort for the name that a client has for it, None for none and for `none`."""
    if name is None:
        return None
    if not isinstance(name, str) or name not in _EFFORTS:
        known = ", ".join(f"`{effort}`" for effort in _EFFORTS)
        raise InvalidRequestError(f"`{param}` is `{shown(name)}`; it must be one of {known}", param=param)
    return _EFFORTS[name]


def _check_kept(keep: str | None) -> None:
    if keep not in (None, "all"):
        raise InvalidRequestError(
            f"`thinking.keep` is `{shown(keep)}`; K3 is always shown all reasoning of earlier answers: send `all` or "
            "leave it out",
            param="thinking.keep",
        )


def _check_switches(options: Mapping[str, Any]) -> None:
    for name in _SWITCHES:
        if (value := options.get(name)) is not None and not isinstance(value, bool):
            param = f"chat_template_kwargs.{name}"
            raise InvalidRequestError(f"`{param}` is `{shown(value)}`; it must be true or false", param=param)
