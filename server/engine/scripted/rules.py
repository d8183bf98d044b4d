"""Rules of a script: which answer the scripted engine gives to which request.

Role: between `script.py`, which reads them, and `engine.py`, which plays them.
Invariant: which rule answers depends on the rules and the request's hints alone: no rule is used up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from server.engine.base import EngineHints
from server.engine.scripted.reply import Step


@dataclass(slots=True, frozen=True)
class When:
    """Which requests a rule answers; all that is given must hold.

    `contains` and `regex` look at the last user text, `last_contains` at the last message's, whose role is `last_role`.
    `after_tools`: how many tool results have come since the last user message.
    """

    contains: str | None = None
    regex: re.Pattern[str] | None = None
    tenant: str | None = None
    model: str | None = None
    last_role: str | None = None
    last_contains: str | None = None
    after_tools: int | None = None

    def holds(self, hints: EngineHints) -> bool:
        """Whether the rule answers a request with these facts."""
        return (
            (self.contains is None or self.contains in hints.last_user_text)
            and (self.regex is None or self.regex.search(hints.last_user_text) is not None)
            and (self.tenant is None or self.tenant == hints.tenant)
            and (self.model is None or self.model == hints.model)
            and (self.last_role is None or self.last_role == hints.last_role)
            and (self.last_contains is None or self.last_contains in hints.last_text)
            and (self.after_tools is None or self.after_tools == hints.num_tool_results)
        )


@dataclass(slots=True, frozen=True)
class DraftFigures:
    """Speculation that a rule pretends: in each step, of `draft` drafted tokens `accepted` are taken.

    `accepted` None: as many as the step has tokens, but one, which the model itself has made.
    """

    draft: int
    accepted: int | None = None

    def taken(self, num_tokens: int) -> int:
        """How many drafted tokens a step of so many tokens has taken."""
        return max(0, num_tokens - 1) if self.accepted is None else self.accepted


@dataclass(slots=True, frozen=True)
class Rule:
    """One answer. `tokens_per_step`: of the engine's outputs, each number in its turn, over and over.

    `cached_tokens` None means: simulate a prefix cache; a number is reported as it is, fitting or not.
    """

    reply: tuple[Step, ...]
    when: When = When()
    tokens_per_step: tuple[int, ...] = (1,)
    step_interval_s: float = 0.0
    cached_tokens: int | None = None
    spec: DraftFigures | None = None


@dataclass(slots=True, frozen=True)
class Script:
    """Rules in the order they are tried."""

    rules: tuple[Rule, ...] = ()

    def rule_for(self, hints: EngineHints) -> tuple[int, Rule] | None:
        """The first rule that answers such a request, with its index; None where none does."""
        return next(((index, rule) for index, rule in enumerate(self.rules) if rule.when.holds(hints)), None)
