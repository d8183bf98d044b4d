"""Names to addresses, by the system's resolver, in threads that nobody waits for.

Role: what `fetch.py` resolves names with. The system's call can't be cancelled, and a name server that never answers holds it for
half a minute. A pool of threads would be full of such calls, so each has a thread of its own; how many there are is bounded by
who asks: `fetch.py` counts a tenant's until they are over.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress

from server.media.addresses import Address

Resolve = Callable[[str, int], Awaitable[list[Address]]]
"""The addresses of a name, the best first. Raises `OSError` where there are none. Not called for addresses."""


async def resolve(host: str, port: int) -> list[Address]:
    """As `Resolve` says."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[Address]] = loop.create_future()

    def tell(found: list[Address] | OSError) -> None:
        if answer.done():
            return
        if isinstance(found, OSError):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    def look_up() -> None:
        found = _look_up(host, port)
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(tell, found)

    threading.Thread(target=look_up, name="resolve", daemon=True).start()
    return await answer


def _look_up(host: str, port: int) -> list[Address] | OSError:
    try:
        # As bytes: the codec that `str` goes through has an opinion on names, and they are ASCII here.
        rows = socket.getaddrinfo(host.encode("ascii"), port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        return [ipaddress.ip_address(row[4][0]) for row in rows if row[0] in (socket.AF_INET, socket.AF_INET6)]
    except OSError as error:
        return error
    except ValueError as error:  # what a resolver should not answer
        return OSError(str(error))
