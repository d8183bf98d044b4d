"""What the images have and do, as their Dockerfile says: what Compose and Kubernetes rely on."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from server.cli import app
from server.engine.profiles import load_profile
from server.settings import Settings, load
from tests.deploy.expressions import ROOT

BIN = "/opt/k3-gateway/bin"


@dataclass(frozen=True)
class Stage:
    """One stage of the Dockerfile: its instructions in order, `(name, argument)`."""

    base: str
    instructions: tuple[tuple[str, str], ...]

    def all(self, name: str) -> list[str]:
        return [argument for instruction, argument in self.instructions if instruction == name]

    def last(self, name: str) -> str:
        return self.all(name)[-1]

    def words(self, name: str) -> list[str]:
        """Of an instruction in exec form."""
        return [str(word) for word in json.loads(self.last(name))]

    @property
    def environment(self) -> dict[str, str]:
        return dict(word.split("=", 1) for line in self.all("ENV") for word in shlex.split(line))

    @property
    def copied(self) -> dict[str, str]:
        """Where files of the project come to be: path in the image -> path in the project."""
        pairs = [[word for word in line.split() if not word.startswith("--")] for line in self.all("COPY")]
        return {target: source for source, target in pairs}

    @property
    def volumes(self) -> set[str]:
        return set(self.words("VOLUME"))


@cache
def stages() -> dict[str, Stage]:
    """By their names."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    found: dict[str, Stage] = {}
    name = ""
    for line in filter(None, map(str.strip, lines)):
        instruction, argument = line.split(None, 1)
        if instruction == "FROM":
            base, _, name = argument.partition(" AS ")
            found[name] = Stage(base, ())
        elif name:
            before = found[name]
            found[name] = Stage(before.base, (*before.instructions, (instruction, " ".join(argument.split()))))
    return found


def programs(stage: Stage) -> set[str]:
    """Paths of what can be run from the gateway's own folder."""
    return {f"{BIN}/python", f"{BIN}/k3-gateway", *(path for path in stage.copied if path.startswith(BIN))}


@cache
def serve_flags() -> set[str]:
    """What `k3-gateway serve` takes."""
    command: Any = typer.main.get_command(app)
    return {option for parameter in command.commands["serve"].params for option in parameter.opts}


def settings_of(folder: Path, config: str, environment: Mapping[str, str]) -> Settings:
    """What a gateway makes of a file with `config` and of an environment. Raises what it would; its engine's profile exists."""
    path = folder / "config.yaml"
    path.write_text(config, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        settings = load(path)
    if settings.engine.kind == "vllm":
        load_profile(settings.engine.profile, settings.engine.overrides).check_nodes()
    return settings


def documents(path: Path) -> list[Any]:
    """All YAML documents of a file."""
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
