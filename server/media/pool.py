"""Images are decoded in processes of their own: a file that kills one takes nothing else with it.

Role: between what has an image file (`loader.py`) and the decoding processes. A file is checked before its request is admitted,
by decoding it and throwing the pixels away, and decoded again when the engine wants it.
Invariant: a process has one job at a time, and ends with a job that takes too long or kills it; the job gets a `MediaError`,
nobody else notices. Processes start with the first images that need them: a gateway without images has none.
Must not: carry bytes of images through the event loop, or trust what a process says.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog

from server.errors import DrainingError, InternalError, MediaError, OverloadedError
from server.media import bad_image
from server.media.mapped_pixels import MappedPixels
from server.media.turns import Turns
from server.media.worker import Worker, WorkerDiedError, decoder_command, hash_in, number_in, sound
from server.payload import Payload

MAX_WAITING_PER_TENANT: Final = 256
MAX_REMEMBERED: Final = 8192
START_TIMEOUT_S: Final = 30.0
PATIENCE: Final = 4.0
"""On a busy machine a job may take so many times as long as it may take of a processor."""

SPARE_S: Final = 5.0
"""A process ends itself so long after the pool should have ended it."""

log = structlog.get_logger(__name__)


@dataclass(slots=True, frozen=True)
class Bounds:
    """How large one image may be: its file, and the picture in it."""

    max_bytes: int
    max_pixels: int


@dataclass(slots=True, frozen=True)
class Checked:
    """An image that can be decoded. `width` and `height` in pixels, upright; `num_bytes` of the file, without any base64.

    `content_hash`: 64 hexadecimal digits, of the file and the scope, and of nothing else.
    """

    width: int
    height: int
    content_hash: str
    num_bytes: int


class _Job:
    """What a process is to do, and who waits for it."""

    __slots__ = ("done", "steps", "tenant")

    def __init__(self, tenant: str, steps: Callable[[Worker, _Job], Awaitable[Any]]) -> None:
        self.tenant = tenant
        self.steps = steps
        self.done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def succeed(self, result: Any) -> None:
        """Hand over the result, if anybody still waits."""
        if self.done.done():
            self.discard(result)
        else:
            self.done.set_result(result)

    @staticmethod
    def discard(result: Any) -> None:
        """Give back what a result that nobody wants holds."""
        if isinstance(result, MappedPixels):
            result.close()

    def fail(self, error: Exception) -> None:
        """Tell who waits, if anybody still does."""
        if not self.done.done():
            self.done.set_exception(error)


class DecodePool:
    """`num_workers` processes at most, all but one of which one tenant may have; for the event loop on which `run` runs.

    A job may take `timeout_s` of a processor. `command` starts the decoding program. A caller that is cancelled while its image
    waits takes it out of the queue; one that is being decoded is decoded to its end, for nobody: so no more of what nobody wants
    is ever done than there are processes.
    """

    def __init__(self, *, num_workers: int, timeout_s: float, command: Sequence[str] | None = None) -> None:
        self._num_workers = num_workers
        self._timeout_s = timeout_s
        self._command = command
        self._turns: Turns[_Job] = Turns(MAX_WAITING_PER_TENANT, max(1, num_workers - 1))
        self._idle: list[asyncio.Future[None]] = []
        self._remembered: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._is_closed = False

    @property
    def num_waiting(self) -> int:
        """Images that no process has taken up."""
        return len(self._turns)

    async def run(self) -> None:
        """Serve until cancelled; then no process is left, and whoever waits gets a `DrainingError`."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self._num_workers):
                    tasks.create_task(self._serve())
        finally:
            self._is_closed = True
            for job in self._turns.clear():
                job.fail(_draining())

    async def check(self, payload: Payload, *, tenant: str, scope: bytes, bounds: Bounds) -> Checked:
        """What is to be known of the image in `payload`, once it was decoded; remembered, so that the next time it only is read.

        `scope`: files of different scopes have different hashes. Raises `MediaError` without `param`, `RateLimitError` where too
        many of the tenant's images wait, and `DrainingError`.
        """
        key = hashlib.blake2b(scope, digest_size=hashlib.blake2b.MAX_KEY_SIZE, person=b"k3gw image").hexdigest()

        async def steps(worker: Worker, job: _Job) -> Checked | None:
            read = await self._read(worker, payload, bounds, key)
            content_hash = hash_in(read)
            size = self._remembered.get(content_hash)
            if size is not None or job.done.done():
                await worker.ask({"do": "forget"})
            if job.done.done():
                return None
            if size is None:
                answer = sound(await worker.ask({"do": "size"}))
                size = (number_in(answer, "width"), number_in(answer, "height"))
            elif size[0] * size[1] > bounds.max_pixels:
                raise bad_image.too_many_pixels(*size, bounds.max_pixels)
            self._remember(content_hash, size)
            return Checked(*size, content_hash, number_in(read, "num_bytes"))

        checked: Checked = await self._do(tenant, steps)
        return checked

    async def pixels(self, payload: Payload, *, tenant: str, bounds: Bounds) -> MappedPixels:
        """The picture in `payload`; goes before checks of the same tenant. Raises as `check`, but for `RateLimitError`."""

        async def steps(worker: Worker, job: _Job) -> MappedPixels | None:
            await self._read(worker, payload, bounds, None)
            if job.done.done():
                await worker.ask({"do": "forget"})
                return None
            answer, file = await worker.ask({"do": "pixels"})
            try:
                sound((answer, None))
                if file is None:
                    raise WorkerDiedError("there are no pixels with its answer")
                return MappedPixels(file, str(answer.get("mode")), number_in(answer, "width"), number_in(answer, "height"))
            except (ValueError, OSError) as error:
                raise WorkerDiedError(str(error)) from None
            finally:
                if file is not None:
                    os.close(file)

        pixels: MappedPixels = await self._do(tenant, steps, is_urgent=True)
        return pixels

    async def _do(self, tenant: str, steps: Callable[[Worker, _Job], Awaitable[Any]], *, is_urgent: bool = False) -> Any:
        if self._is_closed:
            raise _draining()
        job = _Job(tenant, steps)
        self._turns.join(tenant, job, is_urgent=is_urgent)
        while self._idle:
            if not (wake := self._idle.pop()).done():
                wake.set_result(None)
                break
        try:
            return await job.done
        except asyncio.CancelledError:
            self._turns.leave(tenant, job)
            if not job.done.cancelled() and job.done.exception() is None:
                job.discard(job.done.result())  # it came in the same moment
            raise
        finally:
            del job, steps  # an error has this frame, and would hold itself and the payload through them

    async def _read(self, worker: Worker, payload: Payload, bounds: Bounds, key: str | None) -> dict[str, Any]:
        question = {
            "do": "read",
            "offset": payload.offset,
            "num_bytes": payload.num_bytes,
            "is_base64": payload.is_base64,
            "key": key,
            "max_bytes": bounds.max_bytes,
            "max_pixels": bounds.max_pixels,
            "cpu_s": self._timeout_s,
            "limit_s": PATIENCE * self._timeout_s + SPARE_S,
        }
        return sound(await worker.ask(question, payload.file.fileno()))

    def _remember(self, content_hash: str, size: tuple[int, int]) -> None:
        self._remembered[content_hash] = size
        self._remembered.move_to_end(content_hash)
        if len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)

    async def _serve(self) -> None:
        """One process after the other, for one job after the other."""
        worker: Worker | None = None
        try:
            while True:
                job = await self._next()
                if worker is not None and not worker.is_alive:
                    await worker.end()
                    worker = None
                try:
                    worker = await self._work(job, worker)
                finally:
                    self._turns.end(job.tenant)
                    del job  # which holds a payload, and the next may be long in coming
        finally:
            if worker is not None:
                await worker.end()

    async def _next(self) -> _Job:
        while (job := self._turns.take()) is None:
            wake = asyncio.get_running_loop().create_future()
            self._idle.append(wake)  # the last to rest is the first to work: what has a process needs no second one
            try:
                await wake
            finally:
                with suppress(ValueError):
                    self._idle.remove(wake)
        return job

    async def _work(self, job: _Job, worker: Worker | None) -> Worker | None:
        """Do `job` with `worker` or a new process; the one that is there for the next, if any."""
        is_usable = False
        try:
            worker = worker or await self._start()
            if not job.done.done():  # else who wanted it has left while the process started, and closed the payload
                async with asyncio.timeout(PATIENCE * self._timeout_s):
                    job.succeed(await job.steps(worker, job))
            is_usable = True
        except bad_image.BadImageError as error:
            is_usable = True
            job.fail(MediaError(str(error)))
        except TimeoutError:
            log.warning("decoding_starved", waited_s=PATIENCE * self._timeout_s)
            job.fail(OverloadedError("there was too little time to decode an image: the machine is busy; try again in a moment"))
        except WorkerDiedError as error:
            job.fail(await self._why_it_died(worker, error))
        except asyncio.CancelledError:
            job.fail(_draining())
            raise
        except Exception as error:
            log.exception("decoding_failed", reason=str(error))
            job.fail(InternalError.of(error))
        finally:
            if worker is not None and not is_usable:
                await worker.end()
        return worker if is_usable else None

    async def _why_it_died(self, worker: Worker | None, error: WorkerDiedError) -> MediaError:
        """What the client is told of a job that its process did not outlive."""
        if worker is not None:
            await worker.end()
            if worker.exit_code == -signal.SIGPROF:
                log.warning("decoding_timed_out", timeout_s=self._timeout_s)
                return MediaError(f"decoding the image took longer than `{self._timeout_s:g}` s; send a smaller or simpler one")
        log.warning("decoding_failed", reason=str(error))
        return MediaError("the image could not be decoded, its decoder broke off; save it anew with another program")

    async def _start(self) -> Worker:
        """A process that answers. Raises what says why there is none."""
        worker = Worker(self._command or decoder_command())
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await worker.ask({"do": "forget"})
        except BaseException as error:
            await worker.end()
            if isinstance(error, WorkerDiedError | TimeoutError):
                raise RuntimeError(f"the decoding process did not start, and ended with {worker.exit_code}") from error
            raise
        return worker


def _draining() -> DrainingError:
    return DrainingError("this replica is shutting down; try another, or again in a moment")
