"""What a grammar is asked for, and what it is.

Role: between the conversation and the engine: a grammar says which tokens an answer may consist of, from its first to its last.
Invariant: a grammar knows control tokens by their ids only; text that spells one is text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds on what a schema leaves open, for small models that would not stop by themselves. None: no bound.

    `counted_chars` and `exact_chars` are for all models: a string's `maxLength` is held up to the first, its `minLength` and both
    beside a pattern up to the second; longer ones are only validated. Each length costs the engine a mask over its vocabulary,
    some 40 ms of a core for K3's, once in its life.

    `string_tokens`: of a string argument; `text_tokens`: of the response; `think_tokens`: of the reasoning; `json_chars`: of a
    string inside JSON; `items`: of an array; `digits`: before and behind a number's point; `calls`: in one answer;
    `extra_keys`: of an object beside those that are declared; `depth`: levels of recursion and of JSON of any shape.
    """

    string_tokens: int | None = None
    text_tokens: int | None = None
    think_tokens: int | None = None
    json_chars: int | None = None
    items: int | None = None
    digits: int | None = None
    calls: int = 128
    extra_keys: int | None = None
    depth: int | None = None
    counted_chars: int = 256
    exact_chars: int = 64

    @classmethod
    def read(cls, content: Mapping[str, int]) -> Bounds:
        """Those that `answer_bounds` of a profile says. Raises `ValueError` for names that are none."""
        known = [of.name for of in fields(cls)]
        if unknown := [f"`answer_bounds.{name}`" for name in content if name not in known]:
            raise ValueError(f"{', '.join(unknown)}: unknown; known are: {', '.join(known)}")
        return cls(**content)


@dataclass(frozen=True, slots=True)
class Shape:
    """The form of one answer.

    `thinking`: it begins inside the reasoning, else inside the response; `after_calls`: it begins behind a call, needing no more.
    `tools`: all that are declared, in OpenAI's shape, with `tool_paths`: where in the request each stands, `tools[0]` and so on
    where not given. `named`: only this tool, and at least one call. `parallel`: whether there may be more than one call.
    `response_format`: as in the request. `strict_only`: only tools with `strict` have their arguments held to their schema, the
    others' are well-formed.
    """

    thinking: bool = False
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: Literal["auto", "required", "none"] = "auto"
    named: str | None = None
    parallel: bool = True
    response_format: Mapping[str, Any] | None = None
    strict_only: bool = False
    tool_paths: Sequence[str] | None = None
    after_calls: bool = False


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar as the engine takes it.

    `structural_tag`: JSON. `shortest`: token ids of an answer that has no more than it must, end token included; empty where even
    that is too long to be written.
    `unenforced`: paths of what the request asks for and only validation afterwards can tell.
    """

    structural_tag: str
    shortest: tuple[int, ...]
    unenforced: tuple[str, ...]
