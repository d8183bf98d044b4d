"""The command line: `k3-gateway serve | check-config | profiles | engine-node | keys | tenants | usage | demo-model | bench`.

Role: composition. Turns flags into settings, settings into an engine and an application, and runs them.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from server import __version__
from server import settings as settings_module
from server.commands import keys, profiles, tenants, usage
from server.engine.profiles import load_profile
from server.grammar.base import Bounds
from server.settings import Settings, SettingsError

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help="Gateway for Kimi K3 on vLLM.")

app.add_typer(keys.app, name="keys")
app.add_typer(tenants.app, name="tenants")
app.command("usage")(usage.usage)
app.command("profiles")(profiles.profiles)
app.command("engine-node")(profiles.engine_node)

Config = Annotated[Path | None, typer.Option(help="YAML configuration file.")]
Profile = Annotated[str | None, typer.Option(help="Engine profile: a name, or a YAML file.")]


def main() -> None:
    """Entry point of `k3-gateway`."""
    app()


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Gateway for Kimi K3 on vLLM."""


@app.command()
def serve(
    config: Config = None,
    profile: Profile = None,
    engine: Annotated[str | None, typer.Option(help="`vllm` or `scripted`.")] = None,
    model: Annotated[Path | None, typer.Option(help="Folder of the model's checkpoint, for the vllm engine.")] = None,
    script: Annotated[Path | None, typer.Option(help="What the scripted engine says.")] = None,
    vocab: Annotated[Path | None, typer.Option(help="Vocabulary of the scripted engine, a `tiktoken.model`.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
) -> None:
    """Run the gateway."""
    flags: dict[str, Any] = {
        "engine.profile": profile,
        "engine.kind": engine,
        "engine.model_path": model,
        "engine.script": script,
        "engine.vocab": vocab,
        "http.host": host,
        "http.port": port,
    }
    settings = _settings(config, flags)
    if settings.http.workers > 1:
        from server.workers.supervisor import run as supervise

        code = supervise(settings, config, flags)
    else:
        gc.disable()  # what modules are made of is no garbage, and looking at it again and again takes a tenth of the start
        from server.serving import run  # loads the web framework, which `--help` and `check-config` need not wait for

        gc.enable()

        code = run(settings, lambda: settings_module.load(config, flags), config)
    from server.engine.vllm_guard import kill_children

    with suppress(OSError, ValueError):  # whoever read them may be gone
        sys.stdout.flush()
        sys.stderr.flush()
    kill_children()  # an engine whose start was given up may have begun to load since
    os._exit(code)  # everything is closed; what interpreter shutdown would do is have vLLM's libraries print pages about leaks


@app.command("check-config")
def check_config(config: Config = None, profile: Profile = None) -> None:
    """Print the effective settings, each with its origin; exit 2 with every mistake listed."""
    try:
        loaded, origins = settings_module.load_with_origins(config, {"engine.profile": profile})
        engine = loaded.engine
        loaded_profile = (
            load_profile(engine.profile, engine.overrides, engine.draft_model_path) if engine.kind == "vllm" else None
        )
        if loaded_profile is not None:
            Bounds.read(loaded_profile.answer_bounds)
        if engine.kind == "scripted":
            from server.engine.scripted.files import read_files  # loads vocabularies, which `--help` need not wait for

            read_files(engine)
    except SettingsError as error:
        _refuse(error.mistakes)
    except (OSError, ValueError) as error:  # of profiles, scripts and vocabularies
        _refuse([str(error)])
    for name, value in sorted(settings_module.flatten(loaded).items()):
        origin = next((origins[key] for key in origins if key == name or name.startswith(f"{key}.")), "default")
        print(f"{name} = {value!r}  ({origin})")
    if loaded_profile is not None:
        print(*profiles.effective(loaded_profile, engine.overrides), sep="\n")


@app.command("demo-model")
def demo_model(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the checkpoint goes.")],
    if_changed: Annotated[bool, typer.Option("--if-changed", help="Keep a checkpoint that this version has built.")] = False,
) -> None:
    """Build the small K3-shaped demo checkpoint."""
    from server.demo_model.build import DemoModelError, build, is_current

    if if_changed and is_current(folder):
        return
    started_s = time.monotonic()
    try:
        build(folder, lambda text: print(f"[{time.monotonic() - started_s:5.1f} s] {text}", flush=True))
    except DemoModelError as error:
        _refuse([str(error)])


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def bench(context: typer.Context) -> None:
    """Measure: `bench stream`, `bench parse`, …; `bench` alone lists them. In a checkout only."""
    root = Path(__file__).resolve().parents[1]
    if not (root / "bench/__main__.py").is_file():
        _refuse(["the measurements are no part of the installed package: run this in a checkout of k3-gateway"])
    sys.path.insert(0, str(root))
    importlib.import_module("bench.__main__").main(context.args)


def _settings(config: Path | None, flags: dict[str, Any]) -> Settings:
    try:
        return settings_module.load(config, flags)
    except SettingsError as error:
        _refuse(error.mistakes)


def _refuse(mistakes: list[str]) -> NoReturn:
    for mistake in mistakes:
        print(f"error: {mistake}", file=sys.stderr)
    sys.exit(2)
