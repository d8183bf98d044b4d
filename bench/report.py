"""What a command has measured: a table for people, and the same as JSON for programs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.machine import machine, machine_lines
from bench.options import new_file

Row = Mapping[str, Any]


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """`--json FILE`."""
    parser.add_argument("--json", type=new_file, metavar="FILE", help="write the figures there, too")


class Report:
    """The figures of one command. The load average in it is that of before: afterwards it is what was measured."""

    def __init__(self, command: str, settings: Mapping[str, Any]) -> None:
        self._found: dict[str, Any] = {"command": command, "machine": machine(), "settings": dict(settings), "notes": []}

    def head(self) -> None:
        """Print on what is measured."""
        print("\n".join(machine_lines(self._found["machine"])), flush=True)

    def note(self, text: str) -> None:
        """Print what a reader has to know, and keep it."""
        self._found["notes"].append(text)
        print(text, flush=True)

    def table(self, name: str, title: str, columns: Mapping[str, str], rows: Sequence[Row]) -> None:
        """Print `rows`, and keep them under `name`. `columns`: key of a row -> format of its values, as in `format`.

        What a row lacks, or has as None, was not measured.
        """
        self._found[name] = [dict(row) for row in rows]
        cells = [list(columns), *[[_cell(row.get(key), form) for key, form in columns.items()] for row in rows]]
        widths = [max(len(line[at]) for line in cells) for at in range(len(columns))]
        is_text = [form == "" for form in columns.values()]
        print(f"\n{title}")
        for line in cells:
            parts = (f"{cell:{'<' if text else '>'}{width}}" for cell, width, text in zip(line, widths, is_text, strict=True))
            print("  ".join(parts).rstrip(), flush=True)

    def write(self, path: Path | None) -> None:
        """To a file, where one was asked for."""
        if path is not None:
            path.write_text(json.dumps(self._found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _cell(value: Any, form: str) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else format(value, form)


def ratio(of: float | None, to: float | None) -> float | None:
    """None where one of the two was not measured."""
    return of / to if of is not None and to else None
