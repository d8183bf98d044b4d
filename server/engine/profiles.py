"""Engine profiles: how one kind of machine runs the model, as a YAML file.

Role: read once at the start, by `serve` and `check-config`. A profile has the engine's arguments (vLLM's `AsyncEngineArgs`, whose
names and values only vLLM checks) and the environment that has to be set before vLLM is imported.
Must not: import vllm, or know where the model lies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

_FOLDER = Path(__file__).with_name("profiles")
_FIELDS = {"name": str, "description": str, "hardware": str, "engine": dict, "environment": dict, "answer_bounds": dict}
_REQUIRED = ("name", "engine")


class ProfileError(ValueError):
    """The profile can't be used; the message says why."""


@dataclass(slots=True, frozen=True)
class Profile:
    """How to run the model on one kind of machine.

    `engine`: arguments of the engine by vLLM's names, without the model. `environment`: variables of the engine's processes.
    `hardware`: what it is meant for, for people. `answer_bounds`: what answers are held to beside what requests ask for.
    """

    name: str
    engine: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)
    answer_bounds: Mapping[str, int] = field(default_factory=dict)
    description: str = ""
    hardware: str = ""


def profile_names() -> list[str]:
    """The profiles that ship with the gateway, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def load_profile(name: str, overrides: Mapping[str, Any] | None = None) -> Profile:
    """The shipped profile `name`, or the one in the file `name` where that ends in `.yaml`, with engine arguments replaced.

    Each of `overrides` replaces a whole argument, nested ones too. Raises `ProfileError`.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else _FOLDER / f"{name}.yaml"
    if path.parent == _FOLDER and path.stem not in profile_names():
        raise ProfileError(
            f"there is no engine profile `{name}`; known are: {', '.join(profile_names())}; or name a `.yaml` file"
        )
    profile = _read(path)
    return replace(profile, engine={**profile.engine, **(overrides or {})})


def _read(path: Path) -> Profile:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ProfileError(f"the engine profile `{path}` can't be read: {error}") from error
    if not isinstance(content, dict):
        raise ProfileError(f"the engine profile `{path}` is no mapping; it needs `name` and `engine`")
    for name, value in content.items():
        if name not in _FIELDS:
            raise ProfileError(f"the engine profile `{path}` has an unknown field `{name}`; known are: {', '.join(_FIELDS)}")
        if not isinstance(value, _FIELDS[name]):
            raise ProfileError(f"`{name}` of the engine profile `{path}` must be a {_FIELDS[name].__name__}")
    if missing := [name for name in _REQUIRED if name not in content]:
        raise ProfileError(f"the engine profile `{path}` has no `{missing[0]}`")
    for name, value in content.get("environment", {}).items():
        if not isinstance(value, str):
            raise ProfileError(f"`environment.{name}` of the engine profile `{path}` must be a string: put it in quotes")
    for name, value in content.get("answer_bounds", {}).items():
        if type(value) is not int or value < 0:
            raise ProfileError(f"`answer_bounds.{name}` of the engine profile `{path}` must be a whole number")
    if "model" in content["engine"]:
        raise ProfileError(f"`engine.model` of the engine profile `{path}` is set elsewhere, by `engine.model_path`; remove it")
    return Profile(**content)
