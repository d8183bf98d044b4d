"""One scripted answer on its way out: outputs become deltas, with figures that look like a real engine's."""

from __future__ import annotations

import math
from collections.abc import Sequence

from server.engine.base import EngineDelta, EngineStats, Speculation, TokenLogprob
from server.engine.scripted.cache import CachedSequence
from server.engine.scripted.record import Entry
from server.engine.scripted.reply import Output
from server.engine.scripted.rules import Rule


class Answer:
    """Makes the deltas of one request, and counts them in `entry` and `stats`."""

    def __init__(
        self,
        rule: Rule,
        entry: Entry,
        sequence: CachedSequence,
        stats: EngineStats,
        *,
        num_logprobs: int | None,
        vocabulary_size: int,
    ) -> None:
        self.rule = rule
        self._entry = entry
        self._sequence = sequence
        self._stats = stats
        self._num_logprobs = num_logprobs
        self._vocabulary_size = vocabulary_size
        self._num_steps = 0
        self._num_taken = 0

    @property
    def interval_s(self) -> float:
        """How long the next output takes, in seconds; the first comes at once."""
        return self.rule.step_interval_s if self._num_steps else 0.0

    def delta(self, output: Output) -> EngineDelta:
        """The delta that delivers `output`."""
        self._num_steps += 1
        self._entry.num_generated_tokens += len(output.token_ids)
        self._sequence.extend(output.token_ids)
        return EngineDelta(
            output.token_ids,
            logprobs=self._logprobs(output.token_ids),
            finish_reason=output.finish,
            stop_reason=output.stop_reason,
            num_cached_tokens=self._entry.num_cached_tokens,
            speculation=self._speculated(len(output.token_ids), last=output.finish is not None),
        )

    def _logprobs(self, token_ids: Sequence[int]) -> list[TokenLogprob] | None:
        if self._num_logprobs is None:
            return None
        return [fake_logprob(token_id, self._num_logprobs, self._vocabulary_size) for token_id in token_ids]

    def _speculated(self, num_tokens: int, *, last: bool) -> Speculation | None:
        spec = self.rule.spec
        if spec is None:
            return None
        positions = self._stats.accepted_per_position
        positions += [0] * (spec.draft - len(positions))
        num_taken = spec.taken(num_tokens)
        for position in range(num_taken):
            positions[position] += 1
        self._num_taken += num_taken
        self._stats.num_drafts += 1
        self._stats.num_draft_tokens += spec.draft
        return Speculation(self._num_steps, self._num_steps * spec.draft, self._num_taken) if last else None


def fake_logprob(token_id: int, num_top: int, vocabulary_size: int) -> TokenLogprob:
    """A log probability that depends on the token alone, with `num_top` alternatives, the token itself the best of them.

    The probabilities of a token and its alternatives add up to less than 1.
    """
    probability = 0.5 + token_id % 50 / 101
    num_top = min(num_top, vocabulary_size)
    rest = [((token_id + rank) % vocabulary_size, math.log1p(-probability) - rank * math.log(2)) for rank in range(1, num_top)]
    top = ((token_id, math.log(probability)), *rest)[:num_top]
    return TokenLogprob(token_id, math.log(probability), top)
