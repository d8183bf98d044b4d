"""What a scripted answer is made of, and how it is cut into engine outputs.

Role: between `script.py`, which reads replies, and `engine.py`, which paces and delivers them. Synchronous and pure.
Invariant: a reply is played lazily; nothing here is proportional to the number of repetitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle

from server.engine.base import EngineFinish, Sampling


class Word(StrEnum):
    """How a reply ends. What follows one of these is never reached."""

    STOP = "stop"
    LENGTH = "length"
    ERROR = "error"
    DIE = "die"
    HANG = "hang"


@dataclass(slots=True, frozen=True)
class Tokens:
    """Tokens to say, shape (num_tokens,)."""

    token_ids: tuple[int, ...]


@dataclass(slots=True, frozen=True)
class Wait:
    """A pause between two outputs."""

    seconds: float


@dataclass(slots=True, frozen=True)
class Repeat:
    """Steps to be played `times` times."""

    times: int
    steps: tuple[Step, ...]


Step = Tokens | Wait | Repeat | Word


@dataclass(slots=True, frozen=True)
class Output:
    """Tokens of one engine step, shape (num_new_tokens,); `finish` on the last."""

    token_ids: tuple[int, ...]
    finish: EngineFinish | None = None
    stop_reason: int | None = None


@dataclass(slots=True, frozen=True)
class Ending:
    """Which tokens end an answer, and how many it may have. `end_token_id` is the one that `stop` says."""

    end_token_id: int
    end_token_ids: Set[int]
    max_tokens: int
    sampling: Sampling

    def of(self, token_id: int, num_tokens: int) -> Output | None:
        """The end that `token_id`, the `num_tokens`-th of the answer, brings; tokens of the output are left empty.

        As in vLLM, an end token comes before a stop token, and both before the limit.
        """
        is_end_token = token_id in self.end_token_ids
        if is_end_token and not self.sampling.ignore_eos:
            return Output((), "stop")
        if token_id in self.sampling.stop_token_ids:
            return Output((), "stop", None if is_end_token else token_id)
        if num_tokens >= self.max_tokens:
            return Output((), "length")
        return None


def outputs(reply: tuple[Step, ...], tokens_per_step: tuple[int, ...], ending: Ending) -> Iterator[Output | Wait | Word]:
    """What happens, in order: outputs, pauses, and at most one of `error`, `die`, `hang` as the last.

    Outputs have `tokens_per_step` tokens, each number in its turn, over and over.

    A pause or a fault first lets out what was said before it. A reply without an ending ends as with `stop`.
    """
    pending: list[int] = []
    num_tokens = 0
    sizes = cycle(tokens_per_step)
    size = next(sizes)
    for item in _played(reply, ending.end_token_id, endless=ending.sampling.ignore_eos):
        if isinstance(item, int):
            pending.append(item)
            num_tokens += 1
            end = ending.of(item, num_tokens)
            if end is not None:
                yield Output(tuple(pending), end.finish, end.stop_reason)
                return
            if len(pending) >= size:
                yield Output(tuple(pending))
                pending.clear()
                size = next(sizes)
        elif item is Word.LENGTH:
            yield Output(tuple(pending), "length")
            return
        else:
            if pending:
                yield Output(tuple(pending))
                pending.clear()
                size = next(sizes)
            yield item
            if isinstance(item, Word):
                return


def _played(reply: tuple[Step, ...], end_token_id: int, *, endless: bool) -> Iterator[int | Wait | Word]:
    """The reply, token by token. `endless`: an answer that ignores its end starts over after it."""
    while True:
        for item in _flat(reply):
            if item is Word.STOP:
                break
            yield item
        yield end_token_id
        if not endless:
            return


def _flat(steps: tuple[Step, ...]) -> Iterator[int | Wait | Word]:
    for step in steps:
        if isinstance(step, Tokens):
            yield from step.token_ids
        elif isinstance(step, Repeat):
            for _ in range(step.times):
                yield from _flat(step.steps)
        else:
            yield step
