"""The answers that a gateway has under way: how many there are, and the means to end them all.

Role: beside step 8 of a request; also what ends those that take too long, and those whose client leaves. A gateway that is to
stop waits for these, and ends with an error what does not end in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from server.errors import DeadlineError, GatewayError

Watch = Callable[[Callable[[], None] | None], None]
"""Has the server call something when the client of the answer under way leaves; None: nothing any more."""


class OpenAnswers:
    """Every answer under way, of one gateway. None takes longer than `timeout_s`."""

    def __init__(self, timeout_s: float = 3600.0) -> None:
        self.timeout_s = timeout_s
        self._deadline_of: dict[OpenAnswer, float] = {}
        self._alarm: asyncio.TimerHandle | None = None  # one for all, as nearly all end long before
        self._none_left = asyncio.Event()
        self._none_left.set()
        self._make_error: Callable[[], GatewayError] | None = None

    @property
    def num_open(self) -> int:
        """How many are under way."""
        return len(self._deadline_of)

    def open(self, state: dict[str, Any], receive: Receive | None = None) -> OpenAnswer:
        """An `async with` block that works on an answer. `state`: of the request. Entering raises what `end_all` makes.

        With `receive`, of a request whose body has been read, the block is cancelled when the client leaves, and raises
        `ClientDisconnect`; without, it reads the request, of which nothing has begun.
        """
        return OpenAnswer(self, state, receive)

    def end_all(self, make_error: Callable[[], GatewayError]) -> None:
        """Cancel all blocks, and those that would begin from now on; each raises an error of its own.

        One error that all raise would keep the frames of them all alive.
        """
        self._make_error = make_error
        for answer in self._deadline_of:
            answer.end(make_error())

    def end_unread(self, make_error: Callable[[], GatewayError]) -> None:
        """As `end_all`, for the blocks that are open now and read a request: what comes of it would be refused in the end."""
        for answer in self._deadline_of:
            if answer.is_unread:
                answer.end(make_error())

    async def wait_none_left(self) -> None:
        """Return when nothing is under way."""
        while self._deadline_of:
            await self._none_left.wait()

    def enter(self, answer: OpenAnswer) -> None:
        """Count `answer`, unless all have been ended."""
        if self._make_error is not None:
            raise self._make_error()
        deadline_s = self._deadline_of[answer] = asyncio.get_running_loop().time() + self.timeout_s
        self._none_left.clear()
        if self._alarm is None or deadline_s < self._alarm.when():
            self._wake_at(deadline_s)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is under way."""
        return not self._deadline_of

    def leave(self, answer: OpenAnswer) -> None:
        """Count it no more."""
        self._deadline_of.pop(answer, None)
        if not self._deadline_of:
            self._none_left.set()

    def _wake_at(self, deadline_s: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = asyncio.get_running_loop().call_at(deadline_s, self._time_is_up)

    def _time_is_up(self) -> None:
        """For the oldest, unless that has ended."""
        self._alarm = None
        now_s = asyncio.get_running_loop().time()
        for answer in [answer for answer, deadline_s in self._deadline_of.items() if deadline_s <= now_s]:
            answer.end(DeadlineError(f"the request took longer than {self.timeout_s:g} s; ask for less at once"))
        left_s = [deadline_s for deadline_s in self._deadline_of.values() if deadline_s > now_s]
        if left_s:
            self._wake_at(min(left_s))


class OpenAnswer:
    """One block of work on an answer, which can be cancelled with an error from outside, as `asyncio.timeout` does it."""

    __slots__ = ("_answers", "_error", "_num_cancelling", "_receive", "_state", "_task", "_watching")

    def __init__(self, answers: OpenAnswers, state: dict[str, Any], receive: Receive | None) -> None:
        self._answers = answers
        self._state = state
        self._receive = receive
        self._watching: asyncio.Task[None] | None = None
        self._error: Exception | None = None

    @property
    def is_unread(self) -> bool:
        """Whether it reads the request."""
        return self._receive is None

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._num_cancelling = task.cancelling()
        self._answers.enter(self)
        if self._receive is not None:
            if (watch := self._watch) is not None:
                watch(self._client_left)
            else:
                self._watching = asyncio.ensure_future(self._wait_for_end(self._receive))

    @property
    def _watch(self) -> Watch | None:
        """None under a server that offers nothing but ASGI."""
        watch: Watch | None = self._state.get("watch")
        return watch

    async def _wait_for_end(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._client_left()

    def _client_left(self) -> None:
        self._cancel(ClientDisconnect())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._answers.leave(self)
        if self._watching is not None:
            self._watching.cancel()
        elif self._receive is not None and (watch := self._watch) is not None:
            watch(None)
        if self._error is None:
            return
        is_ours = self._task.uncancel() <= self._num_cancelling
        if is_ours and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise self._taken_error().with_traceback(None) from None

    def _taken_error(self) -> Exception:
        """What ended the block. Not kept: raised, it has the frames of the whole request, and these have this block."""
        assert self._error is not None
        error, self._error = self._error, None
        return error

    def end(self, error: GatewayError) -> None:
        """Cancel the block; it raises `error`, whose outcome is that of the request.

        What has its outcome is left alone: it is charged for and in the ledger, and its client gets the rest of it.
        """
        if self._cancel(error) and (record := self._state.get("record")) is not None:
            record.outcome = error.outcome  # what is cancelled can't know why

    def _cancel(self, error: Exception) -> bool:
        record = self._state.get("record")
        if self._error is not None or (record is not None and record.ended_s is not None):
            return False
        self._error = error
        self._task.cancel()
        return True
