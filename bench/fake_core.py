"""A stand-in for vLLM's engine process, so that what stands in front of it can be measured alone.

Everything of `AsyncLLM` in the server's process stays vLLM's own: input and output processing, collectors, statistics. Only the
client of the engine process is replaced. Each step gives every running request the plan's number of token ids, as a real
scheduler does. Works with vLLM 0.32 and 0.33. Source: vllm/v1/engine/core_client.py, `AsyncMPClient`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from vllm.v1.engine import EngineCoreEvent, EngineCoreEventType, EngineCoreOutput, EngineCoreOutputs, FinishReason, core_client
from vllm.v1.metrics.stats import PrefillStats, SchedulerStats

from bench.core_answers import Answer
from bench.core_plan import Plan

TURNS_PER_STEP = 4
"""Turns of the event loop between two steps at full speed, so that consumers take each step's tokens before the next."""

ReadPlan = Callable[[], tuple[float, int, int, int]]


class Running:
    """A request that the core works on. `token_ids`: all that it will say."""

    __slots__ = ("ends", "num_prompt_tokens", "num_said", "token_ids")

    def __init__(self, request: Any, answers: Sequence[Answer], kind: int) -> None:
        answer = answers[kind]
        self.token_ids = answer.token_ids(request.sampling_params.max_tokens or 16)
        self.num_prompt_tokens = len(request.prompt_token_ids or ())
        self.num_said = 0
        self.ends = answer.ends

    @property
    def is_done(self) -> bool:
        return self.num_said == len(self.token_ids)

    def step(self, request_id: str, num_tokens: int) -> Any:
        """The output of one step; the first has the prompt's figures, as the engine's has."""
        events = prefill = None
        start = self.num_said
        if start == 0:
            now_s = time.monotonic()
            events = [EngineCoreEvent(kind, now_s) for kind in (EngineCoreEventType.QUEUED, EngineCoreEventType.SCHEDULED)]
            prefill = PrefillStats()
            prefill.set(self.num_prompt_tokens, 0, 0)
        token_ids = self.token_ids[start : start + num_tokens]
        self.num_said += len(token_ids)
        finish = (FinishReason.STOP if self.ends else FinishReason.LENGTH) if self.is_done else None
        return EngineCoreOutput(
            request_id=request_id, new_token_ids=token_ids, finish_reason=finish, events=events, prefill_stats=prefill
        )


class FakeCore:
    """Answers like the engine core, as the plan says that it reads at each step."""

    def __init__(self, vllm_config: Any, answers: Sequence[Answer], read_plan: ReadPlan) -> None:
        self.vllm_config = vllm_config
        self.resources = SimpleNamespace(engine_dead=False)
        self.engine_ranks_managed = [0]
        self._answers = answers
        self._read_plan = read_plan
        self._running: dict[str, Running] = {}
        self._work = asyncio.Event()
        self._next_step_s = 0.0

    async def add_request_async(self, request: Any) -> None:
        self._running[request.request_id] = Running(request, self._answers, self._read_plan()[2])
        self._work.set()

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._running.pop(request_id, None)

    async def get_output_async(self) -> Any:
        while True:
            while not self._running:
                self._work.clear()
                await self._work.wait()
            steps_per_s, num_tokens, _, most_tokens = self._read_plan()
            await self._wait_for_step(steps_per_s)
            running = self._running
            if most_tokens:
                running = {request_id: of for request_id, of in running.items() if of.num_said < most_tokens}
                if not running:
                    self._work.clear()
                    await self._work.wait()
                    continue
            outputs = [of.step(request_id, num_tokens) for request_id, of in running.items()]
            self._running = {request_id: of for request_id, of in self._running.items() if not of.is_done}
            return EngineCoreOutputs(outputs=outputs, scheduler_stats=SchedulerStats(num_running_reqs=len(self._running)))

    async def _wait_for_step(self, steps_per_s: float) -> None:
        if not steps_per_s:
            for _ in range(TURNS_PER_STEP):
                await asyncio.sleep(0)
            return
        interval_s, now_s = 1 / steps_per_s, time.monotonic()
        self._next_step_s = max(self._next_step_s + interval_s, now_s - interval_s)
        await asyncio.sleep(max(0.0, self._next_step_s - now_s))

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


def install_planned(answers: Sequence[Answer], read_plan: ReadPlan) -> None:
    """Let every `AsyncLLM` built from now on run over a `FakeCore` that says `answers` as planned."""

    def make(vllm_config: Any, *_: Any, **__: Any) -> FakeCore:
        return FakeCore(vllm_config, answers, read_plan)

    core_client.EngineCoreClient.make_async_mp_client = staticmethod(make)


def install(text: str, steps_per_s: float = 0.0, tokens_per_step: int = 1) -> None:
    """Let every `AsyncLLM` built from now on run over a `FakeCore` that says `text` again and again."""
    plan = Plan(steps_per_s, tokens_per_step)

    def make(vllm_config: Any, *_: Any, renderer: Any = None, **__: Any) -> FakeCore:
        token_ids = renderer.get_tokenizer().encode(text, add_special_tokens=False)
        return FakeCore(vllm_config, [Answer([], token_ids, [], ends=False)], lambda: plan)

    core_client.EngineCoreClient.make_async_mp_client = staticmethod(make)
