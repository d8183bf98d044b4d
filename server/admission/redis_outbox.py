"""What this process has to tell Redis of each tenant, until it has been told.

Role: between holds, which only write down, and the link, which sends one script call for each tenant that has something here.
Invariant: settlements are told exactly once. They go in numbered batches, one at a time; a batch whose answer did not come is
sent again as it was, and Redis applies each number once. Everything else is told at most once: what gets lost of it is put
right by the settlement.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson

from server.admission.limits import Standing, Usage

MAX_BATCH: Final = 64


@dataclass(slots=True)
class Question:
    """One operation whose answer somebody waits for; `lost` is called instead of `answered` where none comes."""

    operation: list[Any]
    answered: Callable[[list[int]], None]
    lost: Callable[[], None]
    answer: Future[list[int]] | None = None

    @property
    def is_given_up(self) -> bool:
        """Whether nobody waits any more."""
        return self.answer is not None and self.answer.done()


class Outbox:
    """Of one tenant. `key` is the beginning of its keys in Redis. `renews`: its leases are to be renewed."""

    __slots__ = ("_batch", "_owed", "_replica", "_seq", "_settlements", "key", "questions", "renews", "running", "standing")

    def __init__(self, key: str, replica: str) -> None:
        self.key = key
        self.renews = False
        self._replica = replica
        self.questions: list[Question] = []
        self.running: dict[str, bool] = {}
        """Ids of requests that run -> whether Redis may know them."""
        self.standing: Standing | None = None
        """How the tenant stood when Redis last said so."""
        self._settlements: list[list[Any]] = []
        self._owed: dict[tuple[int, int], list[int]] = {}
        self._batch: list[list[Any]] = []
        self._seq = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not (self.questions or self._settlements or self._batch or self._owed or self.renews)

    def settle(self, hold_id: str, usage: Usage, day: int, month: int) -> None:
        """To be told exactly once. A request that Redis can't know is only added to what is owed for its windows."""
        is_known = self.running.pop(hold_id, True)
        if is_known:
            tokens = usage.num_input_tokens, usage.num_cached_tokens, usage.num_output_tokens
            self._settlements.append([hold_id, *tokens, usage.cost_nano_usd, day, month])
            return
        owed = self._owed.setdefault((day, month), [0, 0])
        owed[0] += usage.num_input_tokens + usage.num_output_tokens
        owed[1] += usage.cost_nano_usd

    def release(self, hold_id: str) -> None:
        """Take back a reservation that nobody uses, if it was made."""
        self._settlements.append([hold_id, 0, 0, 0, 0, 0, 0])

    def payload(self, lease_ms: int) -> tuple[bytes | None, list[Question]]:
        """What to send now, if anything, and whose answers will come, in this order. `acknowledge` once they have come."""
        questions, self.questions = [question for question in self.questions if not question.is_given_up], []
        if not self._batch and (self._settlements or self._owed):
            self._seq += 1
            self._batch, self._settlements = self._settlements[:MAX_BATCH], self._settlements[MAX_BATCH:]
            self._batch += [["", tokens, 0, 0, nano_usd, *windows] for windows, (tokens, nano_usd) in self._owed.items()]
            self._owed = {}
        renewed: list[str] = []
        if self.renews:
            self.renews = False
            renewed = list(self.running)
            self.running = dict.fromkeys(renewed, True)
        if not (questions or renewed or self._batch):
            return None, []
        asked = [question.operation for question in questions]
        return encode(self._replica, self._seq, self._batch, renewed, asked, lease_ms), questions

    def acknowledge(self) -> None:
        """The last payload has been applied."""
        self._batch = []


def encode(replica: str = "", seq: int = 0, exact: Any = (), renew: Any = (), loose: Any = (), lease_ms: int = 0) -> bytes:
    """The script's argument."""
    told = {"replica": replica, "seq": seq, "exact": exact, "renew": renew, "loose": loose, "lease_ms": lease_ms}
    return orjson.dumps(told)
