"""Durations as people write them: `30s`, `15m`, `24h`, `7d`.

Role: bottom layer; for the command line and the admin API.
"""

from __future__ import annotations

import re
from typing import Final

from server.quoting import shown

SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_S: Final = 100 * 366 * 86400
_DURATION: Final = re.compile(r"([0-9]{1,12})([smhd])", re.ASCII)


def seconds_of(text: str, *, least: int = 0) -> int:
    """The seconds of a duration. Raises `ValueError` with a message for people; a century is the most."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"`{shown(text)}` is no duration; write a whole number and `s`, `m`, `h` or `d`, as in `30m` or `7d`")
    seconds = int(match[1]) * SECONDS[match[2]]
    if seconds > MAX_S:
        raise ValueError(f"`{text}` is longer than a century; write a shorter duration")
    if seconds < least:
        raise ValueError(f"`{text}` is shorter than {least} s; write a longer duration")
    return seconds
