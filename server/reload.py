"""The configuration, read again while the gateway runs: on SIGHUP, and when its file has changed.

Role: beside the lifespan, which runs `Reloader.run` in its task group. Invariants: a configuration with a mistake changes
nothing; what can't change without a restart keeps its value, and is named; no stream notices.
A tenant or key that is gone from the file stays as it is: files add and change, they don't delete.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

import structlog
from pydantic import BaseModel

from server.settings import Settings, SettingsError

log = structlog.get_logger(__name__)
POLL_S: Final = 0.4

Apply = Callable[[Settings], Awaitable[None]]
Signature = tuple[int, int, int]
Name = tuple[str, ...]


class Reloader:
    """Keeps a running gateway to its configuration.

    `load` reads the whole configuration, as at the start, and raises `SettingsError`. `apply`: which settings can change, and
    what makes them hold: a dotted name, or the beginning of some, with `*` for one part -> what is called with the new settings
    when one of them differs. What it raises is logged, once, and it is called again with each poll until it succeeds. `path`:
    the file that is watched, None for none.
    """

    def __init__(
        self,
        running: Settings,
        load: Callable[[], Settings],
        apply: Mapping[str, Apply],
        *,
        path: Path | None = None,
        poll_s: float = POLL_S,
    ) -> None:
        self.running = running
        self._read = running
        self._load = load
        self._apply = {tuple(name.split(".")): function for name, function in apply.items()}
        self._path = path
        self._poll_s = poll_s
        self._asked = asyncio.Event()
        self._seen = self._signature()
        self._pending: set[Name] = set()
        self._failures: dict[Name, str] = {}  # of those, what was said last

    def ask(self) -> None:
        """Read the configuration now, changed or not, and let it hold again: what else has set since is overwritten."""
        self._asked.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        last = self._seen
        while True:
            is_asked = await self._next()
            now = self._signature()
            if is_asked or (now is not None and now == last != self._seen):  # the same twice: nobody is writing it just now
                self._seen = now
                await self.reload(everything=is_asked)
            elif self._pending:
                await self._apply_pending(self._read)
            last = now

    async def reload(self, *, everything: bool = False) -> None:
        """Read once. `everything`: also what is as it was when last read."""
        try:
            settings = await asyncio.to_thread(self._load)
        except SettingsError as error:
            log.error("config_refused", mistakes=error.mistakes, kept="the settings that were in use")
            return
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a file, the gateway goes on
            log.error("config_refused", mistakes=[str(error)], kept="the settings that were in use")
            return
        changed = changed_names(self._read, settings)
        self._read = settings
        self._pending |= {pattern for pattern in self._apply if everything or any(_covers(pattern, name) for name in changed)}
        await self._apply_pending(settings)
        fixed = sorted(".".join(name) for name in changed_names(self.running, settings) if not self._can_change(name))
        if fixed:
            log.warning("config_needs_restart", settings=fixed, kept="their values until then")

    async def _apply_pending(self, settings: Settings) -> None:
        for pattern in sorted(self._pending):
            name = ".".join(pattern)
            try:
                await self._apply[pattern](settings)
            except Exception as error:  # noqa: BLE001 - one part that fails must not keep the others from holding
                if self._failures.get(pattern) != str(error):
                    log.error("config_not_applied", part=name, error=str(error), next="it is tried again")
                self._failures[pattern] = str(error)
            else:
                self._pending.discard(pattern)
                self._failures.pop(pattern, None)
                log.info("config_applied", part=name)

    def _can_change(self, name: Name) -> bool:
        return any(_covers(pattern, name) for pattern in self._apply)

    async def _next(self) -> bool:
        """Wait for the next look; whether somebody has asked for it."""
        try:
            async with asyncio.timeout(self._poll_s):
                await self._asked.wait()
        except TimeoutError:
            return False
        self._asked.clear()
        return True

    def _signature(self) -> Signature | None:
        """What changes when the file does. None while there is no such file: it may be between two versions."""
        if self._path is None:
            return None
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def changed_names(before: object, after: object, prefix: Name = ()) -> list[Name]:
    """The names of all settings that differ, part by part: a part may have dots. What only one of the two has is one name."""
    before, after = _parts(before), _parts(after)
    if not isinstance(before, dict) or not isinstance(after, dict):
        return [] if before == after else [prefix]
    return [
        name
        for key in {**before, **after}
        for name in (
            changed_names(before[key], after[key], (*prefix, key)) if key in before and key in after else [(*prefix, key)]
        )
    ]


def _parts(value: object) -> object:
    return dict(value) if isinstance(value, BaseModel) else value


def _covers(pattern: Name, name: Name) -> bool:
    return len(name) >= len(pattern) and all(part in ("*", given) for part, given in zip(pattern, name, strict=False))
