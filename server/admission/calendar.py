"""Calendar days and months in UTC, numbered, so that a budget's window is a number.

Invariant: pure; `limits.lua` counts the same way.
"""

from __future__ import annotations

from datetime import date
from typing import Final

DAY_S: Final = 86_400
_EPOCH: Final = date(1970, 1, 1).toordinal()
_MAX_DAY: Final = date.max.toordinal() - _EPOCH - 31


def day_of(unix_s: int) -> int:
    """Days since 1970."""
    return min(max(unix_s // DAY_S, 0), _MAX_DAY)


def month_of(day: int) -> int:
    """Months since the year 0 of the month that `day` is in."""
    then = date.fromordinal(_EPOCH + day)
    return then.year * 12 + then.month - 1


def day_end_s(day: int) -> int:
    """When `day` is over, in seconds since 1970."""
    return (day + 1) * DAY_S


def month_end_s(month: int) -> int:
    """When `month` is over, in seconds since 1970."""
    year, index = divmod(month + 1, 12)
    return (date(year, index + 1, 1).toordinal() - _EPOCH) * DAY_S
