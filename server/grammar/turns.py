"""Whose grammar is made next.

Role: between the event loop and the one thread that makes grammars. Each tenant has a queue, and the tenants take turns: one that
sends a thousand schemas keeps the others waiting for one of them at a time.
Must not: be used from more than one event loop at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Generic, TypeVar

Result = TypeVar("Result")


class _Build(Generic[Result]):
    """Something to make. `waiting`: tenant -> how many of its requests wait for it."""

    def __init__(self, key: Hashable, make: Callable[[], Result]) -> None:
        self.key = key
        self.make = make
        self.waiting: Counter[str] = Counter()
        self.has_begun = False
        self.result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()


class Turns(Generic[Result]):
    """Makes things in one thread, one at a time, by turns of the tenants that wait for them."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._builds: dict[Hashable, _Build[Result]] = {}
        self._queues: OrderedDict[str, dict[_Build[Result], None]] = OrderedDict()  # tenants in the order of their turns
        self._is_busy = False

    async def run(self, tenant: str, key: Hashable | None, make: Callable[[], Result]) -> Result:
        """What `make` returns, which is called once for all that wait with the same `key`; None: a key of its own.

        A caller that is cancelled leaves the queue; what nobody waits for any longer is not begun.
        """
        build = None if key is None else self._builds.get(key)
        if build is None:
            build = _Build(object() if key is None else key, make)
            self._builds[build.key] = build
        build.waiting[tenant] += 1
        if not build.has_begun:
            self._queues.setdefault(tenant, {})[build] = None
            self._begin_next()
        try:
            return await asyncio.shield(build.result)
        finally:
            self._leave(build, tenant)

    def _leave(self, build: _Build[Result], tenant: str) -> None:
        build.waiting[tenant] -= 1
        if build.has_begun or build.waiting[tenant]:
            return
        self._unqueue(build, tenant)
        if not build.waiting.total():
            del self._builds[build.key]

    def _unqueue(self, build: _Build[Result], tenant: str) -> None:
        queue = self._queues.get(tenant, {})
        queue.pop(build, None)
        if not queue:
            self._queues.pop(tenant, None)

    def _begin_next(self) -> None:
        if self._is_busy or not self._queues:
            return
        tenant, queue = next(iter(self._queues.items()))
        build = next(iter(queue))
        self._queues.move_to_end(tenant)
        for waiting in build.waiting:
            self._unqueue(build, waiting)
        self._is_busy = build.has_begun = True
        made = asyncio.get_running_loop().run_in_executor(self._thread, build.make)
        made.add_done_callback(partial(self._end, build))

    def _end(self, build: _Build[Result], made: asyncio.Future[Result]) -> None:
        self._is_busy = False
        del self._builds[build.key]
        if made.cancelled():
            build.result.cancel()
        elif (error := made.exception()) is not None:
            build.result.set_exception(error)
            build.result.exception()  # all who waited may have left
        else:
            build.result.set_result(made.result())
        self._begin_next()
