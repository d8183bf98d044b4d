"""Engine profiles: how one kind of machine runs the model, as a YAML file.

Role: read once at the start, by `serve`, `engine-node` and `check-config`. A profile has the engine's arguments (vLLM's
`AsyncEngineArgs`, whose names and values only vLLM checks), the environment that has to be set before vLLM is imported, and the
machine it needs. It may extend others: mappings are merged key by key at every depth, anything else is replaced, and `null` takes
out what was inherited; of several the later one wins, and the file itself over all of them.
Must not: import vllm, or know where the model lies.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from server.engine.devices import find_devices
from server.engine.hardware import Requirement, RequirementError, is_made_for, missing, missing_package

_FOLDER = Path(__file__).with_name("profiles")
_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "name": str,
    "extends": (str, list),
    "description": str,
    "hardware": str,
    "source": str,
    "date": (str, datetime.date),
    "verified": str,
    "warning": str,
    "requires": dict,
    "engine": dict,
    "environment": dict,
    "answer_bounds": dict,
}
_REQUIRED = ("name", "engine")
_OWN = ("name", "extends", "description", "verified")
"""Fields that say something of one file and nothing of what extends it."""


class ProfileError(ValueError):
    """The profile can't be used; the message says why."""


@dataclass(slots=True, frozen=True)
class Profile:
    """How to run the model on one kind of machine.

    `engine`: arguments of the engine by vLLM's names, without the model. `environment`: variables of the engine's processes.
    `answer_bounds`: what answers are held to beside what requests ask for. `requires`: the machine, where that can be told.
    `hardware`, `source`, `date` and `verified` (where the layout is from, of when, and who has run it) are for people; `warning`
    is for who starts it.
    """

    name: str
    engine: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)
    answer_bounds: Mapping[str, int] = field(default_factory=dict)
    description: str = ""
    hardware: str = ""
    source: str = ""
    date: str = ""
    verified: str = ""
    warning: str = ""
    requires: Requirement | None = None

    @property
    def num_nodes(self) -> int:
        """How many machines the engine is spread over by vLLM itself."""
        return int(self.engine.get("nnodes") or 1)

    def arguments(self, known: Collection[str]) -> dict[str, Any]:
        """The engine's, as vLLM takes them; `known` are the names of those that it has. Raises `ProfileError`."""
        if unknown := [f"`{name}`" for name in self.engine if name not in known]:
            raise ProfileError(f"the engine profile `{self.name}` has arguments that vLLM does not know: {', '.join(unknown)}")
        speculates = bool(self.engine.get("speculative_config"))
        # vLLM refuses this one where nothing is speculated.
        return {name: value for name, value in self.engine.items() if speculates or name != "per_request_spec_decode_metrics"}

    def on_node(self, rank: int, head: str | None) -> Profile:
        """The profile as node `rank` runs it, `head` being the address of node 0 (None: as the profile says)."""
        if not 0 <= rank < self.num_nodes:
            nodes = f"nodes 0 to {self.num_nodes - 1}" if self.num_nodes > 1 else "one node, which `k3-gateway serve` starts"
            raise ProfileError(f"the engine profile `{self.name}` has {nodes}; there is no node {rank}")
        node = {"node_rank": rank} | ({} if head is None else {"master_addr": head})
        return replace(self, engine={**self.engine, **node})

    def check_machine(self) -> str | None:
        """What is odd about this machine for the profile, if anything.

        Raises `ProfileError` where the machine lacks what the profile requires, or the build of vLLM for it.
        """
        if self.requires is None:
            return None
        found = find_devices(self.requires.vendor)
        if (lack := missing(self.requires, found)) is not None:
            raise ProfileError(
                f"the engine profile `{self.name}` needs {self.requires}; {lack}. `k3-gateway profiles` shows which fits; where "
                "the machine is not told rightly, set `engine.check_hardware: false`"
            )
        if (lack := missing_package(self.requires.vendor)) is not None:
            raise ProfileError(f"the engine profile `{self.name}` can't be served: {lack}")
        if not is_made_for(self.requires, found):
            made_for = " or ".join(self.requires.names)
            return f"the engine profile `{self.name}` is made for {made_for}, and this machine has {found.told()}"
        return None

    def check_nodes(self) -> None:
        """Raise `ProfileError` where the engine would wait for other machines which can't know where it is."""
        if self.num_nodes > 1 and not self.engine.get("master_addr"):
            raise ProfileError(
                f"the engine profile `{self.name}` runs on {self.num_nodes} machines, which meet at an address of this one: set "
                "`engine.overrides: {master_addr: ADDRESS}`, and run `k3-gateway engine-node` on the others (docs/profiles.md)"
            )


def profile_names() -> list[str]:
    """The profiles that ship with the gateway, sorted. Those whose name begins with `_` are there to be extended only."""
    return sorted(path.stem for path in _FOLDER.glob("[!_]*.yaml"))


def load_profile(name: str, overrides: Mapping[str, Any] | None = None, draft_model_path: Path | None = None) -> Profile:
    """The shipped profile `name`, or the one in the file `name` where that ends in `.yaml`, with engine arguments replaced.

    Each of `overrides` replaces a whole argument, nested ones too. `draft_model_path`: the folder of the draft model, in place of
    its name on the hub. Raises `ProfileError`.
    """
    if not _is_file(name) and name not in profile_names():
        raise ProfileError(
            f"there is no engine profile `{name}`; known are: {', '.join(profile_names())}; or name a `.yaml` file"
        )
    path = _path_of(name, Path())
    profile = _profile(_merged(path, ()), path)
    engine = {**profile.engine, **(overrides or {})}
    if draft_model_path is not None:
        draft = engine.get("speculative_config")
        if not isinstance(draft, Mapping) or "model" not in draft:
            raise ProfileError(
                f"`engine.draft_model_path` is set, and the engine profile `{profile.name}` has no draft model; remove the "
                "setting or choose a profile with one"
            )
        engine["speculative_config"] = {**draft, "model": str(draft_model_path)}
    return replace(profile, engine=engine)


def _is_file(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


def _path_of(name: str, folder: Path) -> Path:
    return folder / name if _is_file(name) else _FOLDER / f"{name}.yaml"


def _merged(path: Path, below: tuple[Path, ...]) -> dict[str, Any]:
    """The fields of a profile and of all that it extends. `below`: the files that led here."""
    content = _read(path)
    if path.resolve() in below:
        raise ProfileError(f"the engine profile `{path}` extends itself: {' -> '.join(of.stem for of in (*below, path))}")
    extended = content.pop("extends", None) or []
    merged: dict[str, Any] = {}
    for parent in [extended] if isinstance(extended, str) else extended:
        parent_path = _path_of(str(parent), path.parent)
        if not _is_file(str(parent)) and (Path(parent).name != parent or not parent_path.is_file()):
            raise ProfileError(
                f"the engine profile `{path}` extends `{parent}`, which is none; known are: {', '.join(profile_names())}"
            )
        inherited = _merged(parent_path, (*below, path.resolve()))
        merged = _merge(merged, {name: value for name, value in inherited.items() if name not in _OWN})
    return _merge(merged, content)


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both, key by key at every depth; `above` wins, and its nulls take out."""
    merged = dict(below)
    for key, value in above.items():
        inner = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = _merge(inner if isinstance(inner, dict) else {}, value)
        else:
            merged[key] = value
    return merged


def _read(path: Path) -> dict[str, Any]:
    """What one file says, each field of the type it must have. Raises `ProfileError` with every mistake."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ProfileError(f"the engine profile `{path}` can't be read: {error}") from error
    if not isinstance(content, dict):
        raise ProfileError(f"the engine profile `{path}` is no mapping; it needs `name` and `engine`")
    mistakes = []
    for name, value in content.items():
        types = _FIELDS.get(name)
        if types is None:
            mistakes.append(f"`{name}` is no field; known are: {', '.join(_FIELDS)}")
        elif value is not None and not isinstance(value, types):
            names = " or a ".join(of.__name__ for of in (types if isinstance(types, tuple) else (types,)))
            mistakes.append(f"`{name}` must be a {names}")
    _refuse(path, mistakes)
    return content


def _profile(content: Mapping[str, Any], path: Path) -> Profile:
    """The profile of merged fields. Raises `ProfileError` with every mistake."""
    fields = dict(content)
    mistakes = [f"`{name}` is missing" for name in _REQUIRED if name not in content]
    for name, value in content.get("environment", {}).items():
        if not isinstance(value, str):
            mistakes.append(f"`environment.{name}` must be a string: put it in quotes")
    for name, value in content.get("answer_bounds", {}).items():
        if type(value) is not int or value < 0:
            mistakes.append(f"`answer_bounds.{name}` must be a whole number")
    if "model" in content.get("engine", {}):
        mistakes.append("`engine.model` is set elsewhere, by `engine.model_path`; remove it")
    if "date" in fields:
        fields["date"] = str(fields["date"])
    if "requires" in fields:
        try:
            fields["requires"] = Requirement.read(fields["requires"])
        except RequirementError as error:
            mistakes.append(f"`requires.{error.name}` {error}")
    _refuse(path, mistakes)
    return Profile(**fields)


def _refuse(path: Path, mistakes: Sequence[str]) -> None:
    """Raise `ProfileError` with all of them, if there are any."""
    if mistakes:
        raise ProfileError(f"the engine profile `{path}`: {'. '.join(mistakes)}")
