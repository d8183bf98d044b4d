"""Log lines of the ledger and its spool.

Role: what they say when a disk is full. That may be the disk the log is on, too: a line that can't be written is left out, and
fails nothing.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Literal

import structlog


def say(level: Literal["info", "warning", "error"], event: str, **values: Any) -> None:
    """Log, or don't."""
    with suppress(OSError):
        getattr(structlog.get_logger("server.usage"), level)(event, **values)
