"""The rules of the house, held by machines: imports, style, types, sizes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 300


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_imports_point_down() -> None:
    run(str(Path(sys.executable).with_name("lint-imports")))


def test_style() -> None:
    run(sys.executable, "-m", "ruff", "check", ".")


def test_types() -> None:
    run(sys.executable, "-m", "mypy")


def test_no_file_is_too_long_to_read() -> None:
    too_long = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / "server").rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_LINES
    }

    assert too_long == {}


@pytest.mark.parametrize("name", ["utils", "helpers", "common", "manager", "handler"])
def test_no_module_is_named_after_nothing(name: str) -> None:
    assert not list((ROOT / "server").rglob(f"{name}*.py"))
