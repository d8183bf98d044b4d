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
from difflib import get_close_matches
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
_IN_WORDS: Mapping[type, str] = {str: "text", list: "a list", dict: "a mapping", datetime.date: "a date"}
_WHOLE_NUMBERS: Mapping[str, tuple[int, int]] = {"nnodes": (1, 10_000), "master_port": (1, 65535)}
"""Arguments of the engine that are read here before vLLM checks them."""

_REQUIRED = ("name", "engine")
_GIVEN = ("model", "served_model_name")
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
        return self.engine.get("nnodes") or 1

    def arguments(self, known: Collection[str]) -> dict[str, Any]:
        """The engine's, as vLLM takes them; `known` are the names of those that it has.

        Raises `ProfileError` for all that are none of vLLM's, or that the gateway gives itself.
        """
        if mistakes := [_mistake(name, known) for name in self.engine if name in _GIVEN or name not in known]:
            raise ProfileError(f"engine.profile, engine.overrides: {'; '.join(mistakes)}")
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
                f"the engine profile `{self.name}` runs on {self.num_nodes} machines, which meet at an address of the gateway's: "
                "set `engine.overrides: {master_addr: ADDRESS}` for all, and run `k3-gateway engine-node` on the others, which "
                "takes `--head ADDRESS` as well (docs/profiles.md)"
            )


def _mistake(name: str, known: Collection[str]) -> str:
    """What is wrong with an argument of this name."""
    if name in _GIVEN:
        return f"`{name}` is set elsewhere, by `engine.model_path`; remove it"
    near = get_close_matches(name, known, n=1)
    return f"`{name}` is an argument that vLLM does not know; {f'did you mean `{near[0]}`?' if near else 'remove it'}"


def profile_names() -> list[str]:
    """The profiles that ship with the gateway, sorted. Those whose name begins with `_` are there to be extended only."""
    return sorted(path.stem for path in _FOLDER.glob("[!_]*.yaml"))


def load_profile(name: str, overrides: Mapping[str, Any] | None = None, draft_model_path: Path | None = None) -> Profile:
    """The shipped profile `name`, or the one in the file `name` where that ends in `.yaml`, with engine arguments replaced.

    Each of `overrides` replaces a whole argument, nested ones too. `draft_model_path`: the folder of the draft model, in place of
    its name on the hub. Raises `ProfileError`, which names the setting.
    """
    try:
        profile = _named(name)
    except ProfileError as error:
        raise ProfileError(f"engine.profile: {error}") from error
    engine = {**profile.engine, **(overrides or {})}
    if draft_model_path is not None:
        draft = engine.get("speculative_config")
        if not isinstance(draft, Mapping) or "model" not in draft:
            raise ProfileError(
                f"engine.draft_model_path: is set, and the engine profile `{profile.name}` has no draft model; remove the "
                "setting or choose a profile with one"
            )
        engine["speculative_config"] = {**draft, "model": str(draft_model_path)}
    for argument, (least, most) in _WHOLE_NUMBERS.items():
        value = engine.get(argument)
        if value is not None and not (type(value) is int and least <= value <= most):
            setting = "engine.overrides" if argument in (overrides or {}) else f"engine.profile: `{name}`: engine"
            raise ProfileError(f"{setting}.{argument}: `{value}`: must be a whole number from {least} to {most}")
    return replace(profile, engine=engine)


def _named(name: str) -> Profile:
    if not _is_file(name) and name not in profile_names():
        raise ProfileError(
            f"there is no engine profile `{name}`; known are: {', '.join(profile_names())}; or name a `.yaml` file"
        )
    path = _path_of(name, Path())
    return _profile(_merged(path, ()), path)


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
        if not isinstance(parent, str):
            raise ProfileError(f"`extends` of the engine profile `{path}` has `{parent}`, which is no name of a profile")
        parent_path = _path_of(parent, path.parent)
        if not _is_file(parent) and (Path(parent).name != parent or not parent_path.is_file()):
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
            names = " or ".join(_IN_WORDS[of] for of in (types if isinstance(types, tuple) else (types,)))
            mistakes.append(f"`{name}` must be {names}")
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
