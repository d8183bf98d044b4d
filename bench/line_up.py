"""What is measured side by side: servers over fake cores, each in a process of its own, started together.

Role: below the commands that compare servers. Invariant: what can't be had on this machine is said, and is no error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

from bench import litellm_proxy, load, rust_frontend
from bench.core_answers import TOOL
from bench.core_plan import KINDS, CorePlan, Plan
from bench.options import model_folder
from bench.processes import ROOT, NotStartedError, Process, python
from bench.served import KEY, MODEL

BODIES: Final[dict[str, dict[str, Any]]] = {
    "text": {"chat_template_kwargs": {"thinking": False}},
    "reasoning": {"chat_template_kwargs": {"thinking": True}},
    "tools": {"chat_template_kwargs": {"thinking": False}, "tools": [TOOL]},
}
SERVING_TIMEOUT_S: Final = 300.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """`--model` and `--cache`."""
    parser.add_argument(
        "--model",
        type=model_folder,
        default=str(ROOT / ".cache/demo-model"),
        help="a folder with config.json and K3's vocabulary; no weights are read (default: the demo model)",
    )
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache", help="where what is fetched once is kept")


class Frontend:
    """A server under measurement. `plan`: what its core does."""

    def __init__(self, name: str, process: Process, port: int, plan: CorePlan, *, is_remote: bool) -> None:
        self.name = name
        self.process = process
        self.port = port
        self._plan = plan
        self._is_remote = is_remote

    async def measure(
        self, *, kind: str, steps_per_s: float, tokens_per_step: int, num_streams: int, num_tokens: int, num_requests: int
    ) -> dict[str, float]:
        """The figures of one run, as `bench.load.Measured` has them."""
        self._plan.set(Plan(steps_per_s, tokens_per_step, KINDS.index(kind)))
        if self.name == "direct":
            answer = await asyncio.to_thread(self.process.ask, f"{num_streams} {num_tokens} {num_requests}")
            figures: dict[str, float] = json.loads(answer)
            return figures
        wanted = load.Load(
            num_streams,
            num_tokens,
            num_requests,
            MODEL,
            KEY,
            BODIES[kind],
            pause_s=1 / steps_per_s if steps_per_s else 0.0,
            plan=self._plan if self._is_remote and not steps_per_s else None,
            tokens_per_chunk=tokens_per_step,
        )
        return (await load.measure(self.process, self.port, wanted)).figures()

    async def wait_serving(self) -> None:
        """Return when it has answered a request."""
        if self.name == "direct":
            return
        self._plan.set(Plan())
        until_s = time.monotonic() + SERVING_TIMEOUT_S
        while True:
            try:
                async with asyncio.timeout(10):
                    await load.measure(self.process, self.port, load.Load(1, 1, 1, MODEL, KEY, BODIES["text"]))
                return
            except (OSError, RuntimeError, TimeoutError) as error:
                if time.monotonic() > until_s or self.process.has_ended:
                    raise NotStartedError(f"`{self.name}` does not serve: {error}") from error
                await asyncio.sleep(0.5)


class LineUp:
    """Starts the servers of these names; ends them all when left."""

    def __init__(self, names: Sequence[str], model: Path, cache: Path) -> None:
        self._names = names
        self._model = model.resolve()
        self._cache = cache.resolve()
        self._note: Callable[[str], None] = print
        self._folder = Path(tempfile.mkdtemp(prefix="k3gw-bench-"))
        self.plan_path = self._folder / "plan"
        self.plan = CorePlan(self.plan_path)
        self.frontends: list[Frontend] = []
        self._cores: list[Process] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*(frontend.process for frontend in self.frontends), *self._cores):
            process.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self, note: Callable[[str], None]) -> None:
        """Start all, and wait for them. `note` is told who could not, and why."""
        self._note = note
        for name in self._names:
            try:
                self.frontends.append(self._start(name))
            except NotStartedError as error:
                note(f"not measured: {name}: {error}")
        for frontend in list(self.frontends):
            try:
                frontend.process.wait_ready()
            except NotStartedError as error:
                self._drop(frontend, error)

    async def wait_serving(self) -> None:
        """Return when all have answered a request."""
        waits = [frontend.wait_serving() for frontend in self.frontends]
        for frontend, error in zip(list(self.frontends), await asyncio.gather(*waits, return_exceptions=True), strict=True):
            if isinstance(error, NotStartedError):
                self._drop(frontend, error)
            elif error is not None:
                raise error
        if not self.frontends:
            raise SystemExit("nothing could be started, so nothing is measured")

    def _drop(self, frontend: Frontend, error: NotStartedError) -> None:
        self._note(f"not measured: {frontend.name}: {error}")
        frontend.process.stop()
        self.frontends.remove(frontend)

    def _start(self, name: str) -> Frontend:
        port = load.free_port()
        if name == "rust":
            folder = rust_frontend.fetch(self._cache)
            paths = self._start_core(name, rust_frontend.environment_of(folder))
            process = Process(rust_frontend.command(folder, self._model, port, *paths))
            return Frontend(name, process, port, self.plan, is_remote=True)
        if name == "litellm":
            return Frontend(name, self._start_litellm(port), port, self.plan, is_remote=False)
        is_remote = name.endswith("-zmq")
        options = ["--model", self._model, "--plan", self.plan_path, "--port", port]
        if is_remote:
            options += ["--core", *self._start_core(name, {})]
        command = python("bench.frontends", name.removesuffix("-zmq"), *options)
        return Frontend(name, Process(command), port, self.plan, is_remote=is_remote)

    def _start_litellm(self, port: int) -> Process:
        """The proxy, in front of the server that has been started as `asgi`."""
        upstream = next((frontend for frontend in self.frontends if frontend.name == "asgi"), None)
        if upstream is None:
            raise NotStartedError("it stands in front of `asgi`, which is not measured")
        folder = litellm_proxy.fetch(self._cache)
        self._note(f"LiteLLM {litellm_proxy.version(folder)}")
        command = litellm_proxy.command(folder, upstream.port, port, self._folder / "litellm.yaml")
        return Process(command, litellm_proxy.ENVIRONMENT, says_ready=False)

    def _start_core(self, name: str, environment: dict[str, str]) -> tuple[Path, Path]:
        """Start a core for `name`; the paths of the sockets that its frontend has to bind."""
        paths = self._folder / f"{name}-in", self._folder / f"{name}-out"
        command = python("bench.core_process", *paths, "--model", self._model, "--plan", self.plan_path)
        self._cores.append(Process(command, environment))
        return paths
