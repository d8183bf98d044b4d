"""What the options of measurements may be: a value that can't be measured is refused before anything starts, with exit code 2."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path


def positive(text: str) -> int:
    """A whole number from 1 on."""
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"`{text}` is no whole number from 1 on")
    return int(text)


def positives(text: str) -> str:
    """Such numbers with commas between; checked, and left as they are."""
    for part in text.split(","):
        positive(part)
    return text


def positives_or_none(text: str) -> str:
    """The same, or empty."""
    return text and positives(text)


def paces(text: str) -> str:
    """`STEPS/S:STREAMS` with commas between, or empty."""
    for part in filter(None, text.split(",")):
        steps_per_s, _, num_streams = part.partition(":")
        try:
            is_pace = 0 < float(steps_per_s) < float("inf")
        except ValueError:
            is_pace = False
        if not is_pace:
            raise argparse.ArgumentTypeError(f"`{part}` is no STEPS/S:STREAMS, as `40:128`")
        positive(num_streams)
    return text


def some_of(names: Sequence[str]) -> Callable[[str], str]:
    """Of `names`, with commas between."""

    def checked(text: str) -> str:
        for part in text.split(","):
            if part not in names:
                raise argparse.ArgumentTypeError(f"`{part}`: there are {', '.join(names)}")
        return text

    return checked


def new_file(text: str) -> Path:
    """A file that can be written: its folder is there, and it is no folder itself."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"`{text}` can't be written: name a file in a folder that exists")
    return path


def model_folder(text: str) -> Path:
    """A folder with a `config.json`."""
    path = Path(text)
    if not (path / "config.json").is_file():
        raise argparse.ArgumentTypeError(f"`{text}` has no `config.json`: build the demo model with `k3-gateway demo-model DIR`")
    return path


def existing(text: str) -> Path:
    """A file or folder that is there."""
    path = Path(text)
    if not path.exists():
        raise argparse.ArgumentTypeError(f"`{text}` does not exist")
    return path
