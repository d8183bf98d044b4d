"""`k3-gateway profiles` and `k3-gateway engine-node`: which machine runs which profile, and the other machines of one.

Role: command line. Looks at the machine and never imports vllm itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from server.commands.registry_work import Config, refuse
from server.engine.devices import find_devices
from server.engine.hardware import VENDORS, is_made_for, missing
from server.engine.profiles import Profile, ProfileError, load_profile, profile_names
from server.settings import SettingsError, load, showable


def profiles(
    here: Annotated[bool, typer.Option("--here", help="Only the names of those for this machine.")] = False,
) -> None:
    """List the engine profiles: what each is, what it needs, and whether this machine has that."""
    known = [load_profile(name) for name in profile_names()]
    found = {vendor: find_devices(vendor) for vendor in VENDORS}
    if here:
        fitting = [of for of in known if of.requires is None or missing(of.requires, found[of.requires.vendor]) is None]
        for of in fitting:
            if of.requires is None or is_made_for(of.requires, found[of.requires.vendor]):
                typer.echo(of.name)
        return
    for of in known:
        typer.echo(of.name)
        typer.echo(f"    {of.description}")
        if of.requires is not None:
            typer.echo(f"    needs {of.requires}: {missing(of.requires, found[of.requires.vendor]) or 'this machine has that'}")
        typer.echo(f"    {of.verified}")


def effective(profile: Profile, overrides: Mapping[str, Any]) -> Iterator[str]:
    """What the engine would be started with, a line for each argument, and what may be in the way of it."""
    for section, values in (("engine", profile.engine), ("environment", profile.environment)):
        for name, value in sorted(values.items()):
            origin = "engine.overrides" if section == "engine" and name in overrides else profile.name
            yield f"profile.{section}.{name} = {showable(name, value)!r}  ({origin})"
    yield "note: names and values in `profile.engine` and `profile.environment` are not checked: vLLM does so when it starts"
    if profile.requires is not None:
        lack = missing(profile.requires, find_devices(profile.requires.vendor))
        yield f"note: the profile needs {profile.requires}; {lack or 'this machine has that'}"
    if profile.warning:
        yield f"note: {profile.warning}"
    try:
        profile.check_nodes()
    except ProfileError as error:
        yield f"note: {error}"


def engine_node(
    rank: Annotated[int, typer.Option(help="Number of this machine, from 1 on; the gateway's is 0.")],
    profile: Annotated[str | None, typer.Option(help="Engine profile, the one that the gateway has.")] = None,
    model: Annotated[Path | None, typer.Option(help="Folder of the model's checkpoint.")] = None,
    head: Annotated[str | None, typer.Option(help="Address of the gateway's machine, its `master_addr`.")] = None,
    config: Config = None,
) -> None:
    """Run this machine's part of an engine whose gateway is on another; give it the gateway's configuration."""
    try:
        settings = load(config, {"engine.profile": profile, "engine.model_path": model})
    except SettingsError as error:
        refuse(error.mistakes)
    engine = settings.engine
    try:
        whole = load_profile(engine.profile, engine.overrides, engine.draft_model_path)
        if rank < 1:
            raise ProfileError(f"--rank: `{rank}`: must be 1 or more; node 0 is started by `k3-gateway serve`")
        part = whole.on_node(rank, head)
        part.check_nodes()
        if engine.check_hardware:
            part.check_machine()
        if engine.model_path is None or not (engine.model_path / "config.json").is_file():
            raise ProfileError("engine.model_path: is no folder with a `config.json`; give the checkpoint's with `--model DIR`")
        _work(part, engine.model_path)
    except ProfileError as error:
        refuse([str(error)])


def _work(part: Profile, model_path: Path) -> None:
    from server.engine.vllm_node import run  # loads vLLM, which takes seconds

    typer.echo(f"node {part.engine['node_rank']} of `{part.name}` works for {part.engine['master_addr']}", err=True)
    run(part, model_path)
    typer.echo("the engine's other machines are gone; start this one again, and it waits for them", err=True)
    sys.stderr.flush()
    os._exit(1)  # as `serve` ends: what interpreter shutdown would do is have vLLM's libraries print pages about leaks
