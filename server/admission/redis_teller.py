"""Tells Redis what this process has to say, and knows whether Redis answers.

Role: the one loop between outboxes and the link. Invariant: one round trip is under way at a time; what comes up meanwhile
shares the next one, so that a busy gateway needs fewer of them. Nothing waits here without an end: what is not answered is
`lost`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog
from redis.exceptions import RedisError

from server.admission.redis_link import RedisLink
from server.admission.redis_outbox import Outbox, Question
from server.admission.redis_seeds import Seeds

LINGER_S: Final = 0.002
"""So long a settlement waits for others, or for the next request, to share a round trip."""
LAST_WORDS_S: Final = 1.0
MAX_BOXES: Final = 64
"""In one round trip, so that it is answered in time even when there is much to tell."""
FAILURES: Final = (RedisError, OSError, TimeoutError)
log = structlog.get_logger(__name__)


class RedisTeller:
    """`run` must be running. `went_back` is called when Redis answers again.

    `num_away`: how often Redis went away; `is_away`: it is now.
    """

    def __init__(
        self, link: RedisLink, seeds: Seeds, went_back: Callable[[], None], *, lease_s: float, renew_s: float, retry_s: float
    ) -> None:
        self.is_away = False
        self.num_away = 0
        self._link = link
        self._seeds = seeds
        self._went_back = went_back
        self._lease_ms = int(lease_s * 1000)
        self._renew_s = renew_s
        self._retry_s = retry_s
        self._boxes: list[Outbox] = []
        self._busy: dict[str, Outbox] = {}
        self._work = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._renewal: asyncio.TimerHandle | None = None
        self._is_renewing = False
        self._is_telling = False

    @property
    def has_told_all(self) -> bool:
        """Whether Redis knows of everything that has happened so far."""
        return not (self._busy or self._is_telling)

    def add(self, box: Outbox) -> None:
        """Renew the leases of `box`, too."""
        self._boxes.append(box)

    def wake(self, box: Outbox) -> None:
        """`box` has something to tell, now."""
        self._busy[box.key] = box
        self._work.set()

    def wake_soon(self, box: Outbox) -> None:
        """`box` has something to tell that can wait for others."""
        self._busy[box.key] = box
        if self._linger is None and self._loop is not None:
            self._linger = self._loop.call_later(LINGER_S, self._linger_ended)

    def renew(self) -> None:
        """Renew all leases, and offer the ledger's sums, with the next round trip."""
        self._is_renewing = True
        self._work.set()

    def go_away(self, why: str) -> None:
        """Redis does not answer. It is asked no more until it does."""
        if not self.is_away:
            self.is_away = True
            self.num_away += 1
            self._work.set()
            log.warning("limits_store_away", reason=why[:200])

    async def run(self) -> None:
        """Tell Redis what there is to tell, until cancelled; then once more, for a second at most."""
        self._loop = loop = asyncio.get_running_loop()
        try:
            while True:
                since_s = loop.time()
                try:
                    await self._link.open()
                    await self._seeds.give()
                    self._come_back()
                    while not self.is_away:
                        await self._work.wait()
                        await self._trip()
                except FAILURES as error:
                    self.go_away(f"{type(error).__name__}: {error}")
                self._lose_questions()
                if loop.time() - since_s < self._retry_s:
                    await asyncio.sleep(self._retry_s)
        except asyncio.CancelledError:
            with suppress(*FAILURES):
                async with asyncio.timeout(LAST_WORDS_S):
                    while not self.has_told_all:
                        await self._trip()
            raise
        finally:
            self._loop, self.is_away = None, True
            self._lose_questions()
            for timer in (self._linger, self._renewal):
                if timer is not None:
                    timer.cancel()
            await self._link.close()

    async def _trip(self) -> None:
        """One round trip with what there is."""
        self._work.clear()
        is_renewing, self._is_renewing = self._is_renewing, False
        if is_renewing:
            self._mark_leases()
        sent: list[tuple[Outbox, list[Question]]] = []
        payloads: list[tuple[str, bytes]] = []
        for key in list(self._busy)[:MAX_BOXES]:
            box = self._busy.pop(key)
            payload, questions = box.payload(self._lease_ms)
            if payload is not None:
                payloads.append((key, payload))
                sent.append((box, questions))
        self._is_telling = True
        try:
            answers = await self._link.call(payloads) if payloads else []
            if is_renewing:
                await self._seeds.give()  # also keeps the connection from being closed as idle
        except BaseException:
            for box, questions in sent:
                self._busy[box.key] = box
                for question in questions:
                    question.lost()
            raise
        finally:
            self._is_telling = False
        for (box, questions), answer in zip(sent, answers, strict=True):
            box.acknowledge()
            for question, part in zip(questions, answer.split(b";"), strict=False):
                question.answered([int(number) for number in part.split()])
            if not box.is_empty:
                self._busy[box.key] = box
        if self._busy:
            self._work.set()

    def _mark_leases(self) -> None:
        for box in self._boxes:
            if box.running:
                box.renews = True
                self._busy[box.key] = box
        if self._renewal is not None:
            self._renewal.cancel()
        if self._loop is not None:
            self._renewal = self._loop.call_later(self._renew_s, self.renew)

    def _come_back(self) -> None:
        if self.is_away:
            self.is_away = False
            self._went_back()
            log.warning("limits_store_back")
        self.renew()

    def _lose_questions(self) -> None:
        """What was to be asked won't be."""
        for box in list(self._busy.values()):
            questions, box.questions = box.questions, []
            for question in questions:
                question.lost()

    def _linger_ended(self) -> None:
        self._linger = None
        self._work.set()
