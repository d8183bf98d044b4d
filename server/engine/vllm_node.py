"""The part of an engine that runs on another machine than its gateway: vLLM's own headless node.

Role: the whole of `k3-gateway engine-node`. Node 0 has the gateway, which talks to the engine; the others wait for it at its
address, load their part of the model and work. Which part, vLLM infers from the node's rank. Executor `mp` only: Ray starts its
own processes.
Source: vllm/entrypoints/cli/serve.py `run_headless` (0.32 and 0.33).
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import threading
from collections.abc import Collection
from pathlib import Path

from server import environment
from server.engine.head import watch
from server.engine.profiles import Profile, ProfileError


def run(profile: Profile, model_path: Path) -> None:
    """Work for the gateway on node 0 until a signal ends the process. Returns when the engine is gone.

    `profile` is the one of this node (`Profile.on_node`); all but rank and address must be as the gateway has it. Raises
    `ProfileError`, and whatever vLLM raises.
    """
    environment.apply(profile.environment)
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.cli.serve import run_headless

    fields = {field.name: field.default for field in dataclasses.fields(AsyncEngineArgs)}
    arguments = headless_arguments(profile, model_path, fields)
    port = profile.engine.get("master_port", fields["master_port"])
    gone = threading.Event()

    def end() -> None:
        gone.set()
        os.kill(os.getpid(), signal.SIGTERM)  # vLLM ends its workers then

    watch((profile.engine["master_addr"], int(port)), end)
    try:
        run_headless(arguments)
    except SystemExit:
        if not gone.is_set():
            raise


def headless_arguments(profile: Profile, model_path: Path, known: Collection[str]) -> argparse.Namespace:
    """The arguments as vLLM's command line would have them. `known`: names of the engine's arguments."""
    if profile.engine.get("distributed_executor_backend") == "ray":
        raise ProfileError(
            f"the engine profile `{profile.name}` runs by Ray; run `ray start --address=HEAD:6379` on the other nodes"
        )
    return argparse.Namespace(
        model=str(model_path),
        served_model_name=[model_path.name],
        api_server_count=0,
        headless=True,
        reasoning_parser_plugin=None,
        **profile.arguments(known),
    )
