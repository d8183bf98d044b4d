"""What is remembered of one request, on every ending.

Role: filled in by `generation.py` while the request runs, read afterwards by metrics, the access log and the answer's `usage`.
Bottom layer. Times are of the monotonic clock, in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from server.pace import ClientPace, Pace


@dataclass(slots=True)
class GenerationRecord:
    """One generation request.

    `num_input_tokens` counts the whole prompt as the engine sees it; `num_prompt_tokens` is what clients are told (K3: without
    the stub that opens the answer's channel). `num_output_tokens` counts every generated token, markers included, over
    all choices.
    `num_discarded_tokens`: generated beside these, for calls that did not fit and were sampled again. `tool_calls`: how many
    were `delivered`, `invalid` (delivered, not fitting their schema), `undeclared` (delivered, of no declared tool), `retried`,
    `cut`, or `refused` (the request ended because of it); `json_answers`: the same of answers that were to fit a schema.
    `arrived_unix_ms` is `arrived_s` on the calendar. `rejected_by`: which limit or bound refused it. `queued_s`: when it began to
    wait for a seat; `admitted_s`: when the engine was first asked; until then nothing has cost anything, and `num_input_tokens`
    is 0. `cost_nano_usd`: in 10**-9 dollars, by the model's prices, known at the end. `outcome`: `finished`, `cancelled` (the
    client left), or an error class's outcome. `recoveries`: anomalies of the model's output that were read around, by kind.
    `choice_speeds`: of each choice with more than one output of the engine, the tokens per second after its first. `token_gaps`:
    tokens of all choices by the time since the one before, as `Pace.gaps`, empty where there are none; `token_gaps_s`: their sum.
    `waited_s`: for a seat and the engine, of the choice that waited longest; `client`: what it waited for its client, where
    that is known, of which `unread_s` while the engine was waited for, too. `num_draft_tokens` were guessed by the engine, which
    accepted `num_accepted_tokens` of them.
    `num_image_tokens`: of the prompt's, those of its images, markup included.
    """

    request_id: str
    tenant: str
    model: str
    arrived_s: float
    arrived_unix_ms: int = 0
    key_id: str | None = None
    api: str = "chat"
    num_input_tokens: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_reasoning_tokens: int = 0
    num_discarded_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_images: int = 0
    num_image_tokens: int = 0
    cost_nano_usd: int = 0
    queued_s: float | None = None
    admitted_s: float | None = None
    first_token_s: float | None = None
    ended_s: float | None = None
    outcome: str = "cancelled"
    rejected_by: str | None = None
    finish_reason: str | None = None
    finish_reasons: dict[int, str] = field(default_factory=dict)
    tool_calls: dict[str, int] = field(default_factory=dict)
    json_answers: dict[str, int] = field(default_factory=dict)
    recoveries: dict[str, int] = field(default_factory=dict)
    choice_speeds: list[float] = field(default_factory=list)
    token_gaps: list[int] = field(default_factory=list)
    token_gaps_s: float = 0.0
    waited_s: float = 0.0
    unread_s: float = 0.0
    client: ClientPace | None = None

    def finished(self, choice: int, reason: str) -> None:
        """Choice `choice` has come to its end; the last to do so says why the answer ended."""
        self.finish_reason = self.finish_reasons[choice] = reason

    @property
    def was_dispatched(self) -> bool:
        """Whether the engine was asked; until then nothing has cost anything."""
        return self.admitted_s is not None

    @property
    def queue_s(self) -> float | None:
        """How long it waited for its seat; None for what never waited, or got none."""
        return None if self.queued_s is None or self.admitted_s is None else self.admitted_s - self.queued_s

    @property
    def overhead_s(self) -> float | None:
        """The gateway's own part of the time of a request that the engine was asked; None for others, and until the end.

        What is done with an output while the engine makes the next one holds up nobody: it is no part of it.
        """
        if self.ended_s is None or not self.was_dispatched:
            return None
        waited_s = self.waited_s
        if self.client is not None:
            waited_s += self.client.waited_s(self.arrived_s) - self.unread_s
        return max(0.0, self.ended_s - self.arrived_s - waited_s)

    def engine_done(self, pace: Pace) -> None:
        """The engine has said all of a choice, or is not waited for any more."""
        pace.go_on()
        self.unread_s = self.client.unread_s if self.client is not None else 0.0

    def count_pace(self, pace: Pace) -> None:
        """A choice has ended."""
        if pace.is_waiting:
            self.engine_done(pace)
        self.waited_s = max(self.waited_s, pace.waited_s)
        if (speed := pace.tokens_per_s) is not None:
            self.choice_speeds.append(speed)
            self.token_gaps_s += pace.gaps_s
            so_far = self.token_gaps or [0] * len(pace.gaps)
            self.token_gaps = [count + more for count, more in zip(so_far, pace.gaps, strict=True)]

    def count_calls(self, calls: Mapping[str, int]) -> None:
        """More tool calls, by what became of them."""
        for outcome, count in calls.items():
            self.tool_calls[outcome] = self.tool_calls.get(outcome, 0) + count

    def count_answer(self, outcome: str) -> None:
        """One more answer that was to fit a schema, by what became of it."""
        self.json_answers[outcome] = self.json_answers.get(outcome, 0) + 1

    def log_fields(self) -> dict[str, Any]:
        """What the access log says of it."""
        ttft_s = None if self.first_token_s is None else round(self.first_token_s - self.arrived_s, 4)
        queue_s = None if self.queue_s is None else round(self.queue_s, 4)
        drafts = {"draft_tokens": self.num_draft_tokens, "accepted_tokens": self.num_accepted_tokens}
        return {
            "model": self.model,
            "outcome": self.outcome,
            "finish_reason": self.finish_reason,
            "input_tokens": self.num_input_tokens,
            "cached_tokens": self.num_cached_tokens,
            "output_tokens": self.num_output_tokens,
            "queue_seconds": queue_s,
            "ttft_seconds": ttft_s,
            **(drafts if self.num_draft_tokens else {}),
            **({"images": self.num_images} if self.num_images else {}),
        }

    @property
    def num_cached_prompt_tokens(self) -> int:
        """Cached tokens as clients are told: never more than the prompt tokens they are told."""
        return min(self.num_cached_tokens, self.num_prompt_tokens)
