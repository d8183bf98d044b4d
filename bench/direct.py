"""`AsyncLLM` with no HTTP: what it costs itself, below which no server on it can come.

Asked over standard input: a line `STREAMS TOKENS REQUESTS` is answered with a line of JSON.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.load import percentile


class Direct:
    """Asks an `AsyncLLM` as a server would that does nothing else."""

    def __init__(self, llm: Any, prompt: list[int]) -> None:
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        self._llm = llm
        self._serial = itertools.count(1)
        self._prompt: Callable[[], Any] = lambda: tokens_input(prompt)
        self._params: Callable[[int], Any] = lambda num_tokens: SamplingParams(
            max_tokens=num_tokens, detokenize=False, output_kind=RequestOutputKind.DELTA, skip_clone=True
        )

    async def measure(self, num_streams: int, num_tokens: int, num_requests: int) -> dict[str, float]:
        """The figures of so many requests, as `bench.load.Measured` has them."""
        ttft_s: list[float] = []
        num_chunks = 0
        numbers = iter(range(num_requests))

        async def work() -> None:
            nonlocal num_chunks
            for _ in numbers:
                started_s = time.perf_counter()
                is_first = True
                async for _ in self._llm.generate(self._prompt(), self._params(num_tokens), f"direct-{next(self._serial)}"):
                    num_chunks += 1
                    if is_first:
                        is_first = False
                        ttft_s.append(time.perf_counter() - started_s)

        before_s, started_s = time.process_time(), time.perf_counter()
        await asyncio.gather(*(work() for _ in range(num_streams)))
        cpu_s, wall_s, sum_tokens = time.process_time() - before_s, time.perf_counter() - started_s, num_requests * num_tokens
        return {
            "cpu_s_per_1000_tokens": cpu_s / sum_tokens * 1000,
            "tokens_per_s": sum_tokens / wall_s,
            "cpu_share": cpu_s / wall_s,
            "chunks_per_token": num_chunks / sum_tokens,
            "ttft_p50_ms": 1000 * percentile(ttft_s, 50),
            "ttft_p99_ms": 1000 * percentile(ttft_s, 99),
        }

    async def serve(self) -> None:
        """Answer until standard input ends."""
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await self.measure(*map(int, line.split()))), flush=True)
