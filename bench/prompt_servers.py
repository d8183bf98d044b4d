"""The gateway with all its controls, to be measured from outside while it takes long prompts: `python -m bench.prompt_servers`.

Without `--model` its engine says a letter every `--interval-ms` and looks at no prompt, whatever its length: what is measured is
the gateway. With one, the engine is vLLM's `AsyncLLM` over the fake engine core, to which every request is written as it is to
the real one. Watches its event loop. Prints `ready PORT` once it serves, and answers what `loop_probe` answers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import uvicorn
import uvloop

from bench.image_load import be_nice
from bench.loop_probe import LoopProbe, answer_questions
from bench.served import serve
from server import logs
from server.app import create_app
from server.engine.base import Engine, EngineDelta, EngineRequest, EngineStats, ModelFacts, Take
from server.sections import LogSettings
from server.serving import server_config
from server.settings import Settings
from server.vocabulary.base import Vocabulary
from server.vocabulary.load import load

ADMIN_KEY: Final = "k3gw-bench-admin-key-0123456789"
CONTEXT_LENGTH: Final = 1 << 21
_SEATS: Final = 256


class LetterEngine:
    """Says a letter every `interval_s`, until it has said `max_tokens`."""

    def __init__(self, vocabulary: Vocabulary, interval_s: float) -> None:
        self.vocabulary = vocabulary
        self.facts = ModelFacts(CONTEXT_LENGTH, _SEATS, (vocabulary.control["<|end_of_msg|>"],))
        self.stats = EngineStats()
        self.dead = False
        self.num_unfinished = 0
        self._interval_s = interval_s

    async def generate(self, request: EngineRequest, take: Take | None = None) -> AsyncGenerator[EngineDelta, None]:
        (letter,) = self.vocabulary.encode("x")
        loop = asyncio.get_running_loop()
        self.num_unfinished += 1
        due_s = loop.time()
        try:
            for number in range(1, request.sampling.max_tokens + 1):
                due_s += self._interval_s
                await asyncio.sleep(due_s - loop.time())
                yield EngineDelta((letter,), finish_reason="length" if number == request.sampling.max_tokens else None)
        finally:
            self.num_unfinished -= 1

    async def abort(self, request_id: str) -> None:
        """Never asked for."""

    async def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> list[int]:
        raise NotImplementedError

    async def wait_dead(self) -> None:
        await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        """Nothing is held."""


def _open_vllm(model: Path, interval_s: float) -> Engine:
    """vLLM's part of this process. Its engine core is not there, but requests are written for it."""
    import vllm.envs
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.serial_utils import MsgpackEncoder

    from bench import fake_core
    from server.engine.vllm import VllmEngine

    fake_core.install("x", 1 / interval_s)
    vllm.envs.enable_envs_cache()
    arguments = AsyncEngineArgs(
        model=str(model), enforce_eager=True, max_model_len=CONTEXT_LENGTH, enable_log_requests=False, max_num_seqs=_SEATS
    )
    llm = AsyncLLM.from_engine_args(arguments)
    core: Any = llm.engine_core
    add, encoder = core.add_request_async, MsgpackEncoder()

    async def write_and_add(request: Any) -> None:
        encoder.encode(request)
        await add(request)

    core.add_request_async = write_and_add
    return VllmEngine(llm, load(model))


def _config(options: argparse.Namespace, probe: LoopProbe, folder: str) -> uvicorn.Config:
    interval_s = options.interval_ms / 1000

    async def open_engine() -> Engine:
        return _open_vllm(options.model, interval_s) if options.model else LetterEngine(load(options.vocab), interval_s)

    per_minute = {f"{name}_per_minute": 10**12 for name in ("requests", "input_tokens", "output_tokens")}
    limits = {**per_minute, "concurrent_requests": 10**6}
    settings: dict[str, Any] = {
        "engine": {"kind": "scripted"} if options.known_texts is None else {
            "kind": "scripted", "known_texts_bytes": options.known_texts,
        },
        "tenancy": {"admin_key": ADMIN_KEY},
        "log": {"level": "info"},
        "storage": {"ledger_url": f"sqlite:///{folder}/gateway.db", "spool_path": f"{folder}/spool"},
        "tenants": {"default": {"limits": limits, "budget": {"tokens_per_day": 10**14}}},
    }  # fmt: skip
    app = create_app(Settings.model_validate(settings), open_engine)
    app.state.gateway.background.append(probe.run)
    return server_config(app)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=Path, help="a model's folder, `tiktoken.model` or `tokenizer.json`")
    parser.add_argument("--model", type=Path, help="a model's folder, for vLLM; weights are not read")
    parser.add_argument("--interval-ms", type=float, default=25.0)
    parser.add_argument("--known-texts", type=int, help="bytes; left out: the setting's default")
    parser.add_argument("--nice", type=int, default=0)
    options = parser.parse_args()
    be_nice(options.nice)
    if options.model:
        from server import environment
        from server.engine.profiles import load_profile

        os.environ["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
        environment.apply(load_profile("cpu-demo").environment)
    logs.configure(LogSettings())
    probe = LoopProbe()
    answer_questions(probe)
    with tempfile.TemporaryDirectory(prefix="k3gw-bench-") as folder:
        uvloop.run(serve(_config(options, probe, folder)))


if __name__ == "__main__":
    main()
