"""Whether tenants get what their weights promise, and a light one stays quick beside a flood.

    python -m bench.fairness [--seats 32] [--seconds 400] [--seed 1]
    python -m bench.fairness --url http://127.0.0.1:8000 --admin-key KEY --seconds 60 [--seats 32] [--flood 200]

The fair queue before the scripted engine, in made-up time: exact, and the same on every run of a seed. Backlogged tenants ask
again as soon as they are answered; what they are given is measured in the queue's own currency, between two moments at which
all of them wait. With `--url` the same of a gateway that runs (`fairness_http.py`). Prints a table of what is demanded and what
was found; exit code 1 where something was missed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, Final

from bench import fairness_http
from bench.fair_shares import WARM_UP_S, Found, Load, Shape, busy_line, shares
from bench.processes import end_on_sigterm
from bench.virtual_time import LoopClock, run
from server.admission.fair_queue import FairQueue
from server.context import Tenant
from server.engine.base import EngineHints, EngineRequest, Sampling
from server.engine.scripted.engine import ScriptedEngine
from server.engine.scripted.reply import Repeat, Tokens, Wait
from server.engine.scripted.rules import Rule, Script
from server.models import Price
from server.sections import AdmissionSettings
from server.vocabulary.byte import ByteVocabulary

MAX_TTFT_RATIO: Final = 1.5
STEP_S: Final = 0.08
TOKENS_PER_STEP: Final = 4
PREFILL_S: Final = 0.05
NUM_FLOOD_REQUESTS: Final = 200
_PRICE: Final = Price(input=3 * 10**9, cached_input=3 * 10**8, output=15 * 10**9)
SHORT: Final = Shape((50, 200), (20, 100))
CHAT: Final = Shape((200, 2000), (50, 300))
READING: Final = Shape((4000, 12000), (10, 60))
WRITING: Final = Shape((50, 300), (500, 1500))
LIGHT: Final = Shape((100, 100), (20, 20))
LONG: Final = Shape((500, 1000), (1000, 2000))


class Queue:
    """The fair queue and the scripted engine in this process."""

    def __init__(self, num_seats: int) -> None:
        self.num_seats = num_seats
        vocabulary = ByteVocabulary()
        reply = (Wait(PREFILL_S), Repeat(10**6, (Tokens(tuple(vocabulary.encode("word"))),)))
        script = Script((Rule(reply, tokens_per_step=(TOKENS_PER_STEP,), step_interval_s=STEP_S),))
        self._engine = ScriptedEngine(vocabulary, script, seats=num_seats)
        settings = AdmissionSettings(queue_timeout_s=3600)
        self._num_common = num_seats - num_seats // 16
        self._queue = FairQueue(num_seats, settings, LoopClock(), self._engine.stats)
        self._num_asked = 0

    async def ask(self, tenant: Tenant, num_input_tokens: int, num_output_tokens: int) -> float:
        begun_s = asyncio.get_running_loop().time()
        ttft_s = None
        self._num_asked += 1
        sampling = Sampling(max_tokens=num_output_tokens)
        token_ids = [self._num_asked % 256, self._num_asked // 256 % 256, *([0] * (num_input_tokens - 2))]
        request = EngineRequest(str(self._num_asked), token_ids, sampling, tenant.name, hints=EngineHints(tenant.name))
        (place,) = self._queue.join(
            tenant,
            _PRICE,
            num_places=1,
            num_input_tokens=num_input_tokens,
            num_output_tokens=200,
            prefix_key=tenant.name.encode(),
        )
        try:
            await place.wait()
            async with aclosing(self._engine.generate(request)) as deltas:
                async for delta in deltas:
                    if ttft_s is None:
                        ttft_s = asyncio.get_running_loop().time() - begun_s
                        place.prefilled(delta.num_cached_tokens)
                    place.produced(len(delta.token_ids))
        finally:
            place.leave()
        assert ttft_s is not None
        return ttft_s

    def take_service(self) -> Mapping[str, float]:
        return self._queue.take_service()

    def busy(self) -> float | None:
        return self._engine.stats.num_running / self._num_common if self._queue.num_queued else None


async def light(load: Load, seconds: float, name: str) -> list[Found]:
    """A tenant with one short request now and then: alone, and beside a flood of long ones."""
    tenant = Tenant("light")

    async def ttft_p99() -> float:
        until_s = asyncio.get_running_loop().time() + seconds
        ttfts_s = []
        while asyncio.get_running_loop().time() < until_s:
            await asyncio.sleep(load.random.expovariate(2.0))
            ttfts_s.append(await load.ask(tenant, LIGHT))
        return sorted(ttfts_s)[int(len(ttfts_s) * 0.99)]

    alone_s = await ttft_p99()
    beside: list[float] = []

    async def measure() -> None:
        await asyncio.sleep(WARM_UP_S)
        load.busy.clear()
        beside.append(await ttft_p99())

    await load.beside(measure(), [(Tenant("flood"), LONG, max(NUM_FLOOD_REQUESTS, 2 * load.target.num_seats))])
    ratio = beside[0] / alone_s
    figures = f"{ratio:.2f} x ({beside[0] * 1000:.0f} ms, alone {alone_s * 1000:.0f} ms)"
    return [Found(f"{name}: light TTFT p99", f"<= {MAX_TTFT_RATIO} x", figures, ratio <= MAX_TTFT_RATIO), busy_line(load, name)]


Scenario = Callable[[Load], Coroutine[Any, Any, list[Found]]]


def scenarios(seconds: float) -> list[Scenario]:
    """All that is measured."""

    def backlogged(name: str, *sides: tuple[Tenant, Shape]) -> Scenario:
        return lambda load: shares(load, seconds, sides, name)

    return [
        *(
            backlogged(f"weights 1:{weight}", (Tenant("one"), CHAT), (Tenant("other", weight=weight), CHAT))
            for weight in (1, 3, 10)
        ),
        backlogged("mixed shapes", (Tenant("short"), SHORT), (Tenant("reading"), READING), (Tenant("writing"), WRITING)),
        lambda load: light(load, seconds, "flood of long ones"),
    ]


def measure(num_seats: int, seconds: float, seed: int) -> list[Found]:
    """Every scenario, each on a new queue and engine."""

    async def measured(scenario: Scenario) -> list[Found]:
        return await scenario(Load(Queue(num_seats), seed))

    return [found for scenario in scenarios(seconds) for found in run(measured(scenario))]


def main() -> None:
    """Measure and print. Exit code 1 where something was missed."""
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seats", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=400.0, help="of made-up time, for each measurement")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--url", help="a gateway that runs, in place of all that is made up; needs --admin-key")
    parser.add_argument("--admin-key")
    parser.add_argument("--flood", type=int, default=NUM_FLOOD_REQUESTS, help="requests that flood a running gateway at once")
    options = parser.parse_args()
    if options.url is None:
        lines = measure(options.seats, options.seconds, options.seed)
    else:
        settings = (options.url, options.admin_key, options.seats, options.seconds, options.seed, options.flood)
        lines = asyncio.run(fairness_http.measure(*settings))
    width = max(len(line.what) for line in lines)
    for line in lines:
        print(f"{line.what:<{width}}  {line.demanded:>9}  {line.found:<36}  {'ok' if line.is_met else 'MISSED'}")
    sys.exit(0 if all(line.is_met for line in lines) else 1)


if __name__ == "__main__":
    main()
