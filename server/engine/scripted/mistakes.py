"""Reading untrusted script values: what is wrong is noted with its place and read as something harmless.

Role: lets `script.py` report all mistakes of a script at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ABSENT: Any = object()
"""Stands for a key that is not there, where None could be a value."""


class Mistakes:
    """The mistakes found so far, one line each: `rules[2].reply[0].text: what is wrong`."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def mapping(self, data: Any, path: str, known: tuple[str, ...]) -> Mapping[str, Any]:
        """`data` if it is a mapping, else an empty one; keys other than `known` are mistakes."""
        names = ", ".join(f"`{key}`" for key in known)
        if not isinstance(data, dict):
            self.add(path, f"{shown(data)} is not a mapping with {names}")
            return {}
        if not data:
            self.add(path, f"is empty: give {names}")
        for key in data:
            if key not in known:
                self.add(path, f"unknown key `{key}`; known are {names}")
        return data

    def string(self, value: Any, path: str) -> str:
        """`value` if it is text, else an empty text."""
        if isinstance(value, str):
            return value
        self.add(path, "is missing" if value is ABSENT else f"{shown(value)} is not text: put it in quotes")
        return ""

    def integer(self, value: Any, path: str, *, minimum: int = 0, maximum: int | None = None) -> int:
        """`value` if it is a whole number between `minimum` and `maximum`, else `minimum`."""
        if isinstance(value, int) and not isinstance(value, bool) and minimum <= value and (maximum is None or value <= maximum):
            return value
        wanted = f"a whole number from {minimum} on" if maximum is None else f"a whole number from {minimum} to {maximum}"
        self.add(path, "is missing" if value is ABSENT else f"{shown(value)} is not {wanted}")
        return minimum

    def milliseconds(self, value: Any, path: str) -> float:
        """`value`, a number of milliseconds, in seconds; 0 if it is none."""
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf"):
            return value / 1000
        self.add(path, f"{shown(value)} is not a number of milliseconds from 0 on")
        return 0.0

    def add(self, path: str, problem: str) -> None:
        """Note that what is at `path` has `problem`."""
        self.lines.append(f"{path}: {problem}")


def shown(value: Any) -> str:
    """`value` as a message shows it, cut to a readable length."""
    text = repr(value)
    return f"`{text if len(text) <= 60 else text[:60] + '…'}`"
