"""One server that takes images, to be measured from outside: `python -m bench.image_servers gateway|naive`.

`gateway` is this project with all its controls, over the scripted engine, which has the pixels decoded once more and then says a
letter every `--interval-ms`. `naive` is what comes to mind first: FastAPI, `await request.json()`, the image decoded where it
stands. Both watch their event loop. Prints `ready PORT` once it serves, and answers what `loop_probe` answers.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import uvicorn
import uvloop
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from PIL import Image

from bench.image_load import be_nice
from bench.loop_probe import LoopProbe, answer_questions
from bench.served import serve
from server import logs
from server.app import create_app
from server.engine.base import Engine
from server.engine.scripted.cache import PrefixCache
from server.engine.scripted.engine import ScriptedEngine
from server.engine.scripted.record import Record
from server.engine.scripted.script import parse_script
from server.sections import LogSettings
from server.serving import server_config
from server.settings import Settings
from server.vocabulary.byte import ByteVocabulary

ADMIN_KEY: Final = "k3gw-bench-admin-key-0123456789"
SERVERS: Final = ("gateway", "naive")
_SEATS: Final = 1024


class _ForgetfulEngine(ScriptedEngine):
    """The scripted engine without its long memory, which would pass for the gateway's."""

    def __init__(self, interval_ms: float) -> None:
        vocabulary = ByteVocabulary()
        letters = {"repeat": {"times": 10_000_000, "of": [{"text": "x"}]}}
        script = parse_script([{"step_interval_ms": interval_ms, "reply": [letters]}], vocabulary)
        super().__init__(vocabulary, script, context_length=1 << 24, seats=_SEATS)
        self._record = Record(max_entries=1)
        self._cache = PrefixCache(num_blocks=64)


def _gateway(interval_ms: float, probe: LoopProbe, folder: str) -> uvicorn.Config:
    async def open_engine() -> Engine:
        return _ForgetfulEngine(interval_ms)

    per_minute = {f"{name}_per_minute": 10**12 for name in ("requests", "input_tokens", "output_tokens")}
    limits = {**per_minute, "concurrent_requests": 10**6}
    settings = {
        "engine": {"kind": "scripted"},
        "tenancy": {"admin_key": ADMIN_KEY},
        "log": {"level": "info"},
        "storage": {"ledger_url": f"sqlite:///{folder}/gateway.db", "spool_path": f"{folder}/spool"},
        "admission": {"max_held_bytes": 1 << 40},
        "tenants": {name: {"limits": limits, "budget": {"tokens_per_day": 10**14}} for name in ("default", "images")},
    }
    app = create_app(Settings.model_validate(settings), open_engine)
    app.state.gateway.background.append(probe.run)
    return server_config(app)


def _naive(interval_ms: float, probe: LoopProbe) -> uvicorn.Config:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        watching = asyncio.ensure_future(probe.run())
        yield
        watching.cancel()

    app = FastAPI(lifespan=lifespan)

    @app.post("/v1/chat/completions")
    async def answer(request: Request) -> StreamingResponse:
        body = await request.json()
        for part in body["messages"][0]["content"]:
            if isinstance(part, dict) and part["type"] == "image_url":
                file = base64.b64decode(part["image_url"]["url"].partition(",")[2])
                Image.open(io.BytesIO(file)).load()

        async def frames() -> AsyncGenerator[str, None]:
            for _ in range(body["max_tokens"]):
                await asyncio.sleep(interval_ms / 1000)
                yield f"data: {json.dumps({'choices': [{'index': 0, 'delta': {'content': 'x'}}]})}\n\n"
            yield "data: [DONE]\n\n"

        return StreamingResponse(frames(), media_type="text/event-stream")

    return uvicorn.Config(app, loop="uvloop", http="httptools", access_log=False, log_level="error")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=SERVERS)
    parser.add_argument("--interval-ms", type=float, default=25.0)
    parser.add_argument("--nice", type=int, default=0)
    options = parser.parse_args()
    be_nice(options.nice)
    logs.configure(LogSettings())
    probe = LoopProbe()
    answer_questions(probe)
    with tempfile.TemporaryDirectory(prefix="k3gw-bench-") as folder:
        interval_ms = options.interval_ms
        uvloop.run(serve(_naive(interval_ms, probe) if options.name == "naive" else _gateway(interval_ms, probe, folder)))


if __name__ == "__main__":
    main()
