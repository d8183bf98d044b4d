"""The connection to Redis: one, with one round trip under way at a time.

Role: carries payloads of outboxes to the script and answers back. Invariant: whatever fails or takes too long closes the
connection, so that no late answer is ever taken for another's.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any, Final

from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from server.admission.patience import Patience

SCRIPT: Final = files("server.admission").joinpath("limits.lua").read_bytes()
SCRIPT_SHA: Final = hashlib.sha1(SCRIPT).hexdigest()


class RedisLink:
    """A connection to `url`. Everything raises `redis.RedisError`, `OSError` or `TimeoutError`, and is closed then."""

    def __init__(self, url: str, *, probe_s: float, reply_s: float) -> None:
        self._probe_s = probe_s
        self._reply_s = reply_s
        # No time limits of the library's own: it keeps them with `wait_for`, which before Python 3.12 loses a cancellation that
        # comes with the end of what it waits for, and they cost a task for each command.
        options = {"socket_timeout": None, "socket_connect_timeout": None, "retry": Retry(NoBackoff(), 0)}
        pool = ConnectionPool.from_url(url, **options, decode_responses=False, protocol=2)
        self._connection: AbstractConnection = pool.make_connection()  # type: ignore[no-untyped-call]

    async def open(self) -> None:
        """Connect, and see to it that Redis answers in time and has the script."""
        await self._ask([("PING",)], self._probe_s)
        await self._ask([("SCRIPT", "LOAD", SCRIPT)], self._reply_s)

    async def close(self) -> None:
        """Disconnect. What is asked next connects anew."""
        await self._connection.disconnect(nowait=True)

    async def call(self, payloads: Iterable[tuple[str, bytes]]) -> list[bytes]:
        """One script call for each (key, payload), in one round trip; its answers."""
        return await self._ask([("EVALSHA", SCRIPT_SHA, 1, key, payload) for key, payload in payloads], self._reply_s)

    async def ask(self, *command: str | int) -> Any:
        """The answer to one command."""
        return (await self._ask([command], self._reply_s))[0]

    async def _ask(self, commands: Sequence[tuple[Any, ...]], timeout_s: float) -> list[Any]:
        connection = self._connection
        try:
            async with asyncio.timeout(None) as scope:
                patience = Patience(timeout_s, lambda: scope.reschedule(0.0))
                try:
                    await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
                    return [await connection.read_response() for _ in commands]
                finally:
                    patience.end()
        except BaseException:
            await self.close()
            raise
