"""One server over a fake engine core, to be measured from outside: `python -m bench.frontends NAME --model DIR --port PORT`.

`gateway`: this project with all its controls on. `gateway-off`: with those off that can be: no keys, limits or budgets, no
ledger, no metrics, no line a request. `vllm`: vLLM's own OpenAI server; `vllm-k3`: the same with its parsers of K3's answers.
`asgi` and `direct`: lower bounds. `uvicorn`: no engine at all. Prints `ready` once it serves. With `--core IN OUT` the core is in
a process of its own, as an engine's is, and these are the sockets to it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvicorn
import uvloop

from bench import fake_core
from bench.asgi_frontend import AsgiFrontend, IdleFrontend
from bench.controls import switch_off
from bench.core_answers import answers_of
from bench.core_plan import CorePlan
from bench.direct import Direct
from bench.processes import allow_many_files
from bench.served import KEY, MAX_MODEL_LEN, MAX_STREAMS, MODEL, TEMPLATE
from server import environment, logs
from server.app import create_app
from server.engine.base import Engine
from server.engine.profiles import load_profile
from server.engine.vllm import VllmEngine
from server.sections import LogSettings
from server.serving import server_config
from server.settings import Settings
from server.vocabulary.load import load

FRONTENDS: Final = ("gateway", "gateway-off", "vllm", "vllm-k3", "asgi", "direct", "uvicorn")


@dataclass(frozen=True)
class Core:
    """How `AsyncLLM` gets at its core: the sockets of one in another process, or None for the one that was installed."""

    in_path: str | None = None
    out_path: str | None = None

    def async_llm(self, arguments: Any, **more: Any) -> Any:
        """An `AsyncLLM` over it."""
        from vllm.v1.engine.async_llm import AsyncLLM

        addresses = None
        if self.in_path is not None:
            addresses = {"input_address": f"ipc://{self.in_path}", "output_address": f"ipc://{self.out_path}"}
        return AsyncLLM.from_vllm_config(arguments.create_engine_config(), client_addresses=addresses, **more)


def engine_args(model: Path) -> Any:
    """vLLM's arguments, the same for all."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    seats = {"max_num_seqs": MAX_STREAMS, "max_num_batched_tokens": MAX_MODEL_LEN}
    return AsyncEngineArgs(model=str(model), enforce_eager=True, max_model_len=MAX_MODEL_LEN, enable_log_requests=False, **seats)


def open_fake(model: Path, core: Core | None = None) -> Engine:
    """The gateway's engine over a fake core; without `core`, over the one that was installed."""
    import vllm.envs

    from server.engine.base import EngineStats
    from server.engine.vllm_stats import recorder_class

    vllm.envs.enable_envs_cache()  # as `VllmEngine.open` does, which starts a real engine
    stats = EngineStats()
    llm = (core or Core()).async_llm(engine_args(model), stat_loggers=[recorder_class(stats)])
    return VllmEngine(llm, load(model), stats)


def gateway_app(model: Path, core: Core, folder: Path, *, controls: bool) -> Any:
    """The gateway's application. What it keeps is in a new folder within `folder`."""

    async def open_engine() -> Engine:
        return open_fake(model, core)

    kept = tempfile.mkdtemp(dir=folder)
    storage = {"ledger_url": f"sqlite:///{kept}/gateway.db", "spool_path": f"{kept}/spool"}
    if not controls:
        settings = Settings.model_validate({"tenancy": {"auth": "off"}, "log": {"level": "error"}, "storage": storage})
        app = create_app(settings, open_engine)
        switch_off(app.state.gateway)
        return app
    limits = {"requests_per_minute": 10**9, "input_tokens_per_minute": 10**12, "output_tokens_per_minute": 10**12}
    tenants = {"default": {"limits": {**limits, "concurrent_requests": 10**6}, "budget": {"tokens_per_day": 10**14}}}
    settings = Settings.model_validate({"tenancy": {"key": KEY}, "storage": storage, "tenants": tenants})
    return create_app(settings, open_engine)


async def vllm_app(model: Path, core: Core, *, parsers: bool) -> Any:
    """vLLM's own application."""
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    try:
        from vllm.entrypoints.common.cli_args import make_arg_parser  # 0.33
    except ImportError:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser

    options = ["--enforce-eager", "--max-model-len", str(MAX_MODEL_LEN), "--served-model-name", MODEL]
    options += ["--disable-uvicorn-access-log", "--chat-template", TEMPLATE]
    if parsers:
        options += ["--reasoning-parser", "kimi_k3", "--tool-call-parser", "kimi_k3", "--enable-auto-tool-choice"]
    args = make_arg_parser(FlexibleArgumentParser()).parse_args([str(model), *options])
    args.model = str(model)
    engine = core.async_llm(engine_args(model))
    tasks = await engine.get_supported_tasks()
    app = build_app(args, tasks, engine.model_config)
    await init_app_state(engine, app.state, args, tasks)
    return app


async def _config(name: str, model: Path, core: Core, folder: Path) -> uvicorn.Config:
    if name in ("gateway", "gateway-off"):
        return server_config(gateway_app(model, core, folder, controls=name == "gateway"))
    app: Any
    if name == "uvicorn":
        app = IdleFrontend()
    elif name == "asgi":
        app = AsgiFrontend(core.async_llm(engine_args(model)), load(model), MODEL)
    else:
        app = await vllm_app(model, core, parsers=name == "vllm-k3")
    return uvicorn.Config(app, access_log=False, log_level="error", http="httptools", timeout_keep_alive=75)


def _collect() -> None:
    gc.collect()
    print("collected", flush=True)


async def _serve(config: uvicorn.Config, port: int) -> None:
    gc.collect()
    gc.freeze()
    server = uvicorn.Server(config)
    start = server.startup

    async def started(sockets: Any = None) -> None:
        await start(sockets)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, _collect)
        if (gateway := getattr(getattr(config.app, "state", None), "gateway", None)) is not None:
            await gateway.opened.wait()
        print(f"ready {os.getpid()}", flush=True)

    server.startup = started  # type: ignore[method-assign]
    await server.serve(sockets=[socket.create_server(("127.0.0.1", port), backlog=MAX_STREAMS)])


async def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("frontend", choices=FRONTENDS)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--plan", type=Path, required=True, help="what a server keeps is put into its folder")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--core", nargs=2, metavar=("IN", "OUT"), default=(None, None))
    options = parser.parse_args()
    allow_many_files()
    core = Core(*options.core)
    vocabulary = load(options.model)
    if core.in_path is None and options.frontend != "uvicorn":
        fake_core.install_planned(answers_of(vocabulary), CorePlan(options.plan).reader)
    if options.frontend == "direct":
        await Direct(core.async_llm(engine_args(options.model)), vocabulary.encode("Tell me about a number.")).serve()
    else:
        await _serve(await _config(options.frontend, options.model, core, options.plan.parent), options.port)


if __name__ == "__main__":
    environment.apply(load_profile("cpu-demo").environment)
    logs.configure(LogSettings())
    uvloop.run(_main())
