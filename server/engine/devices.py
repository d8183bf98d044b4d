"""The GPUs and the memory of this machine, without a GPU library.

Role: below `hardware.py`. NVIDIA's are asked of `nvidia-smi`, AMD's of `rocm-smi`, each with a time limit; without the tool, what
the driver shows in the file system is counted. What the engine is not to see (`CUDA_VISIBLE_DEVICES` and its like) is left out.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from server.settings import visible_devices

GIB: Final = 1024**3
TOOL_TIMEOUT_S: Final = 30.0  # a driver that wakes up eight GPUs takes seconds
_QUERY: Final = ("--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")
_AMD: Final = "0x1002"


@dataclass(slots=True, frozen=True)
class Device:
    """One GPU, or the machine itself where it is about a CPU. What can't be read of it is empty or None."""

    index: int
    name: str
    memory_gib: float | None
    uuid: str = ""


@dataclass(slots=True, frozen=True)
class Devices:
    """What one vendor's tool says there is, and the engine may see. `why_none`: how it was looked for, where there is none."""

    devices: Sequence[Device]
    why_none: str = ""
    hidden: str = ""

    @property
    def memory_gib(self) -> list[float | None]:
        """Of each device."""
        return [device.memory_gib for device in self.devices]

    def told(self) -> str:
        """What they are, for people: `NVIDIA H200 with 140 GiB`."""
        kinds = dict.fromkeys(
            (device.name or "GPU") + ("" if device.memory_gib is None else f" with {device.memory_gib:.0f} GiB")
            for device in self.devices
        )
        return ", ".join(kinds) + (f"; {self.hidden}" if self.hidden else "")


def find_devices(vendor: str, system: Path = Path("/")) -> Devices:
    """The devices of `nvidia`, `amd` or `cpu` that the engine would see. `system`: the root of the file system."""
    if vendor == "cpu":
        return Devices([Device(0, "CPU", memory_of_machine_gib(system))])
    found, why_none = _nvidia(system) if vendor == "nvidia" else _amd(system)
    variable, value = visible_devices(vendor)
    if value is None or not found:
        return Devices(found, why_none)
    seen = _visible(found, value)
    hidden = f"{variable} shows {len(seen)} of {len(found)}" if len(seen) < len(found) else ""
    return Devices(seen, hidden, hidden)


def memory_of_machine_gib(system: Path = Path("/")) -> float | None:
    """What processes here may use: the machine's memory, or less where a container has a limit. None where it can't be read."""
    sizes: list[int] = []
    with suppress(ValueError, OSError, AttributeError):
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for path in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(ValueError, OSError):  # `max`, or another version of control groups
            sizes.append(int((system / path).read_text(encoding="ascii")))
    return min(sizes) / GIB if sizes else None


def _nvidia(system: Path) -> tuple[list[Device], str]:
    if shutil.which("nvidia-smi") is None:
        paths = sorted((system / "dev").glob("nvidia[0-9]*"), key=lambda path: int(re.sub(r"\D", "", path.name) or 0))
        return [Device(index, "", None) for index, _ in enumerate(paths)], "`nvidia-smi` was not found"
    lines, error = _run("nvidia-smi", *_QUERY)
    devices = []
    for row in csv.reader(lines.splitlines(), skipinitialspace=True):
        if len(row) == 4 and row[0].isdecimal():
            memory_gib = float(row[3]) / 1024 if re.fullmatch(r"\d+(\.\d+)?", row[3]) else None
            devices.append(Device(int(row[0]), row[2], memory_gib, row[1]))
    return devices, error or "`nvidia-smi` shows none"


def _amd(system: Path) -> tuple[list[Device], str]:
    if shutil.which("rocm-smi") is not None:
        text, error = _run("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")
        if devices := _rocm_smi(text):
            return devices, ""
    else:
        error = "`rocm-smi` was not found"
    return _amd_of_driver(system), error or "`rocm-smi` shows none"


def _rocm_smi(text: str) -> list[Device]:
    try:
        cards = sorted(
            (int(name.removeprefix("card")), card) for name, card in json.loads(text).items() if name.startswith("card")
        )
        return [
            Device(index, str(card.get("Card Series", card.get("Card series", ""))), _gib(card.get("VRAM Total Memory (B)")))
            for index, card in cards
        ]
    except (ValueError, AttributeError):
        return []


def _amd_of_driver(system: Path) -> list[Device]:
    """What `amdgpu` shows of its cards. Displays have no memory of their own there worth the name, and are no GPUs to it."""
    if not (system / "dev/kfd").exists():
        return []
    devices: list[Device] = []
    for folder in sorted((system / "sys/class/drm").glob("card*/device")):
        with suppress(OSError):
            if (folder / "vendor").read_text(encoding="ascii").strip() == _AMD and (folder / "mem_info_vram_total").is_file():
                memory = (folder / "mem_info_vram_total").read_text(encoding="ascii").strip()
                devices.append(Device(len(devices), "", _gib(memory)))
    return devices


def _gib(num_bytes: object) -> float | None:
    return int(num_bytes) / GIB if isinstance(num_bytes, str) and num_bytes.isdecimal() else None


def _visible(devices: Sequence[Device], value: str) -> list[Device]:
    """Those that a list of indexes and unique ids shows; as for the driver, what is unknown ends the list."""
    seen: list[Device] = []
    for part in filter(None, (part.strip() for part in value.split(","))):
        named = [of for of in devices if str(of.index) == part or (of.uuid and len(part) > 4 and of.uuid.startswith(part))]
        if not named:
            break
        seen += [of for of in named[:1] if of not in seen]
    return seen


def _run(*command: str) -> tuple[str, str]:
    """What it prints, and what was wrong."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=TOOL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return "", f"`{command[0]}` did not answer within {TOOL_TIMEOUT_S:.0f} s"
    except OSError as error:
        return "", f"`{command[0]}` can't be run: {error.strerror}"
    if done.returncode != 0:
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()
        return "", f"`{command[0]}` failed: {words[0] if words else f'exit code {done.returncode}'}"
    return done.stdout, ""
