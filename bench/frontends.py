"""One server over the fake engine core, to be measured from outside: `python -m bench.frontends NAME --model DIR --port PORT`.

`gateway` is this project with all its controls; `vllm` is vLLM's own OpenAI server; `direct` has no HTTP: what `AsyncLLM` itself
costs, below which no server on it can come. Prints `ready PID` once it serves.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import socket
import tempfile
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from bench import fake_core
from server.app import create_app
from server.engine.base import Engine
from server.engine.vllm import VllmEngine
from server.serving import server_config
from server.settings import Settings
from server.vocabulary.load import load

TEXT = (
    "The gateway takes a request, renders the prompt, asks the engine for tokens and sends every new piece of text back while "
    "the rest is still being made. Several tokens may come at once where drafts are checked in one forward pass. "
) * 4
KEY = "k3gw-bench-key-0123456789"
MODEL = "kimi-k3"
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant: "
"""For vLLM's server, which needs one; the gateway renders K3's own, longer prompt."""


def _engine_args(model: Path) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs

    return AsyncEngineArgs(model=str(model), enforce_eager=True, max_model_len=8192, enable_log_requests=False, max_num_seqs=1024)


def open_fake(model: Path) -> Engine:
    """The engine over the fake core, which must have been installed."""
    import vllm.envs
    from vllm.v1.engine.async_llm import AsyncLLM

    vllm.envs.enable_envs_cache()  # as `VllmEngine.open` does, which starts a real engine
    return VllmEngine(AsyncLLM.from_engine_args(_engine_args(model)), load(model))


def _gateway(model: Path) -> Any:
    async def open_engine() -> Engine:
        return open_fake(model)

    folder = tempfile.mkdtemp(prefix="k3gw-bench-")
    storage = {"ledger_url": f"sqlite:///{folder}/gateway.db", "spool_path": f"{folder}/spool"}
    limits = {"requests_per_minute": 10**9, "input_tokens_per_minute": 10**12, "output_tokens_per_minute": 10**12}
    tenants = {"default": {"limits": {**limits, "concurrent_requests": 10**6}, "budget": {"tokens_per_day": 10**14}}}
    settings = {"tenancy": {"key": KEY}, "log": {"level": "info"}, "storage": storage, "tenants": tenants}
    return create_app(Settings.model_validate(settings), open_engine)


async def _vllm(model: Path) -> Any:
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.async_llm import AsyncLLM

    try:
        from vllm.entrypoints.common.cli_args import make_arg_parser  # 0.33
    except ImportError:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser

    options = ["--enforce-eager", "--max-model-len", "8192", "--served-model-name", MODEL, "--disable-uvicorn-access-log"]
    options += ["--chat-template", TEMPLATE]
    args = make_arg_parser(FlexibleArgumentParser()).parse_args([str(model), *options])
    args.model = str(model)
    engine = AsyncLLM.from_engine_args(_engine_args(model))
    tasks = await engine.get_supported_tasks()
    app = build_app(args, tasks, engine.model_config)
    await init_app_state(engine, app.state, args, tasks)
    return app


async def _direct(model: Path, streams: list[int], num_tokens: int) -> None:
    """Print a line of JSON for each number of streams, as `bench.load` does."""
    from vllm.inputs import tokens_input
    from vllm.sampling_params import RequestOutputKind, SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

    llm = AsyncLLM.from_engine_args(_engine_args(model))
    prompt = load(model).encode("Tell me about a number.")

    async def one(index: int, gate: asyncio.Semaphore) -> int:
        params = SamplingParams(max_tokens=num_tokens, detokenize=False, output_kind=RequestOutputKind.DELTA, skip_clone=True)
        async with gate:
            return sum([1 async for _ in llm.generate(tokens_input(prompt), params, f"{os.getpid()}-{index}")])

    for num_streams in streams:
        gate = asyncio.Semaphore(num_streams)
        before = resource.getrusage(resource.RUSAGE_SELF)
        chunks = sum(await asyncio.gather(*(one(index, gate) for index in range(max(num_streams * 3, 16)))))
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(json.dumps({"streams": num_streams, "chunks": chunks, "cpu_s_per_1000_chunks": cpu_s / chunks * 1000}), flush=True)


async def _serve(config: uvicorn.Config, port: int) -> None:
    gc.collect()
    gc.freeze()
    server = uvicorn.Server(config)
    start = server.startup

    async def started(sockets: Any = None) -> None:
        await start(sockets)
        if (gateway := getattr(getattr(config.app, "state", None), "gateway", None)) is not None:
            await gateway.opened.wait()
        print(f"ready {os.getpid()}", flush=True)

    server.startup = started  # type: ignore[method-assign]
    await server.serve(sockets=[socket.create_server(("127.0.0.1", port), backlog=4096)])


async def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("frontend", choices=("gateway", "vllm", "direct"))
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--steps-per-s", type=float, default=0.0)
    parser.add_argument("--tokens-per-step", type=int, default=1)
    parser.add_argument("--streams", default="1,32,128")
    parser.add_argument("--tokens", type=int, default=256)
    options = parser.parse_args()
    fake_core.install(TEXT, options.steps_per_s, options.tokens_per_step)
    if options.frontend == "direct":
        await _direct(options.model, [int(number) for number in options.streams.split(",")], options.tokens)
        return
    if options.frontend == "gateway":
        config = server_config(_gateway(options.model))
    else:
        config = uvicorn.Config(await _vllm(options.model), access_log=False, log_level="error", http="httptools")
    await _serve(config, options.port)


if __name__ == "__main__":
    from server import environment, logs
    from server.engine.profiles import load_profile
    from server.sections import LogSettings

    environment.apply(load_profile("cpu-demo").environment)
    logs.configure(LogSettings())
    uvloop.run(_main())
