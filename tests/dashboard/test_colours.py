"""Whether the page can be read, in light and in dark: the contrast of its colours (WCAG 2.2, 1.4.3 and 1.4.11)."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import combinations

import pytest

CSS = (files("server.dashboard") / "static" / "page.css").read_text(encoding="utf-8")
COLOURS = {name: (light, dark) for name, light, dark in re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", CSS)}
LINES = ("blue", "orange", "green", "purple", "red", "grey")


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("ground", ["ground", "surface"])
def test_text_and_lines_stand_out(scheme: int, ground: str) -> None:
    found = {name: contrast(COLOURS[name][scheme], COLOURS[ground][scheme]) for name in ("text", "quiet", *LINES)}
    least = {name: 4.5 if name in ("text", "quiet", "red") else 3.0 for name in found}  # old figures have their age in red

    assert {} == {name: round(value, 2) for name, value in found.items() if value < least[name]}


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_no_two_lines_look_alike(scheme: int) -> None:
    def distance(one: str, other: str) -> float:
        return sum((int(one[at : at + 2], 16) - int(other[at : at + 2], 16)) ** 2 for at in (1, 3, 5)) ** 0.5

    pairs = {(one, other): distance(COLOURS[one][scheme], COLOURS[other][scheme]) for one, other in combinations(LINES, 2)}
    assert {} == {pair: far for pair, far in pairs.items() if far < 60}


def test_every_colour_that_is_used_is_named_for_both() -> None:
    used = set(re.findall(r"var\(--(\w+)\)", CSS))

    assert used <= set(COLOURS)
    assert not re.findall(r"#[0-9a-f]{3,6}\b", re.sub(r"light-dark\([^)]*\)", "", CSS))
