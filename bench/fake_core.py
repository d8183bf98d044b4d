"""A stand-in for vLLM's engine process, so that what stands in front of it can be measured alone.

Everything of `AsyncLLM` in the server's process stays vLLM's own: input and output processing, collectors, statistics. Only the
client of the engine process is replaced. Each step gives every running request `tokens_per_step` token ids, as a real scheduler
does. Works with vLLM 0.32 and 0.33. Source: vllm/v1/engine/core_client.py, `AsyncMPClient`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from vllm.v1.engine import EngineCoreEvent, EngineCoreEventType, EngineCoreOutput, EngineCoreOutputs, FinishReason, core_client
from vllm.v1.metrics.stats import PrefillStats, SchedulerStats

TURNS_PER_STEP = 4
"""Turns of the event loop between two steps at full speed, so that consumers take each step's tokens before the next."""


@dataclass(slots=True)
class _Running:
    num_left: int
    num_prompt_tokens: int
    token_ids: Any
    started: bool = field(default=False)


class FakeCore:
    """Answers like the engine core. `steps_per_s` 0 means: as fast as the event loop allows."""

    def __init__(self, vllm_config: Any, token_ids: list[int], steps_per_s: float, tokens_per_step: int) -> None:
        self.vllm_config = vllm_config
        self.resources = SimpleNamespace(engine_dead=False)
        self.engine_ranks_managed = [0]
        self._token_ids = token_ids
        self._interval_s = 1 / steps_per_s if steps_per_s else 0.0
        self._tokens_per_step = tokens_per_step
        self._running: dict[str, _Running] = {}
        self._work = asyncio.Event()
        self._next_step_s = 0.0

    async def add_request_async(self, request: Any) -> None:
        self._running[request.request_id] = _Running(
            request.sampling_params.max_tokens, len(request.prompt_token_ids or ()), itertools.cycle(self._token_ids)
        )
        self._work.set()

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._running.pop(request_id, None)

    async def get_output_async(self) -> Any:
        while not self._running:
            self._work.clear()
            await self._work.wait()
        await self._wait_for_step()
        outputs = [self._output(request_id, of) for request_id, of in self._running.items()]
        self._running = {request_id: of for request_id, of in self._running.items() if of.num_left}
        return EngineCoreOutputs(outputs=outputs, scheduler_stats=SchedulerStats(num_running_reqs=len(self._running)))

    async def _wait_for_step(self) -> None:
        if not self._interval_s:
            for _ in range(TURNS_PER_STEP):
                await asyncio.sleep(0)
            return
        now_s = time.monotonic()
        self._next_step_s = max(self._next_step_s + self._interval_s, now_s - self._interval_s)
        await asyncio.sleep(max(0.0, self._next_step_s - now_s))

    def _output(self, request_id: str, of: _Running) -> Any:
        num_tokens = min(self._tokens_per_step, of.num_left)
        of.num_left -= num_tokens
        events = prefill = None
        if not of.started:
            of.started = True
            now_s = time.monotonic()
            events = [EngineCoreEvent(kind, now_s) for kind in (EngineCoreEventType.QUEUED, EngineCoreEventType.SCHEDULED)]
            prefill = PrefillStats()
            prefill.set(of.num_prompt_tokens, 0, 0)
        return EngineCoreOutput(
            request_id=request_id,
            new_token_ids=list(itertools.islice(of.token_ids, num_tokens)),
            finish_reason=None if of.num_left else FinishReason.LENGTH,
            events=events,
            prefill_stats=prefill,
        )

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        return ("generate",)

    async def is_sleeping_async(self) -> bool:
        return False

    async def reset_prefix_cache_async(self, *_: Any) -> bool:
        return True

    async def reset_mm_cache_async(self) -> None: ...

    async def reset_encoder_cache_async(self) -> None: ...

    def dp_engines_running(self) -> bool:
        return bool(self._running)

    def shutdown(self, timeout: float | None = None) -> None:
        self.resources.engine_dead = True


def install(text: str, steps_per_s: float = 0.0, tokens_per_step: int = 1) -> None:
    """Let every `AsyncLLM` built from now on run over a `FakeCore` that says `text` again and again."""

    def make(vllm_config: Any, *_: Any, renderer: Any = None, **__: Any) -> FakeCore:
        token_ids = renderer.get_tokenizer().encode(text, add_special_tokens=False)
        return FakeCore(vllm_config, token_ids, steps_per_s, tokens_per_step)

    core_client.EngineCoreClient.make_async_mp_client = staticmethod(make)
