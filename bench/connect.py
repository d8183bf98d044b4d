"""What a request costs when the answer is next to nothing: requests/s, and latency that is added.

    python -m bench connect [--concurrent 1,16,64] [--requests 400] [--rounds 3] [--json FILE]

Answers of one token, whole, on kept connections. `asgi` is the bound: written by hand over the same engine, with no key, limits
or accounts; latency is what others add to its. The gateway has the engine in its process; LiteLLM's proxy (one worker, a key, no
database) stands in front of `asgi`, which is how it is used, and does less: no limits, no queue, no ledger. All are measured in
turn, round by round.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from statistics import median
from typing import Any, Final

import uvloop

from bench import load
from bench.line_up import BODIES, Frontend, LineUp, add_options
from bench.options import positive, positives, some_of
from bench.processes import allow_many_files, end_on_sigterm
from bench.report import Report, add_json_option
from bench.served import KEY, MODEL

BOUND: Final = "asgi"
FRONTENDS: Final = (BOUND, "gateway", "vllm", "litellm")
COLUMNS: Final = {
    "concurrent": "d", "frontend": "", "requests/s": ",.0f", "CPU ms a request": ".2f", "p50 ms": ".2f", "p99 ms": ".2f",
    "added p50 ms": ".2f", "added p99 ms": ".2f",
}  # fmt: skip


async def _run(frontend: Frontend, num_concurrent: int, num_requests: int) -> dict[str, float]:
    body = {**BODIES["text"], "stream": False}
    wanted = load.Load(num_concurrent, 1, max(num_requests, 4 * num_concurrent), MODEL, KEY, body)
    measured = await load.measure(frontend.process, frontend.port, wanted)
    return {
        "requests/s": measured.num_requests / measured.wall_s,
        "CPU ms a request": 1000 * measured.cpu_s / measured.num_requests,
        "p50 ms": 1000 * load.percentile(measured.latency_s, 50),
        "p99 ms": 1000 * load.percentile(measured.latency_s, 99),
    }


async def _measure(line_up: LineUp, options: argparse.Namespace) -> list[dict[str, Any]]:
    await line_up.wait_serving()
    for frontend in line_up.frontends:
        await _run(frontend, 4, 50)
    numbers = [int(number) for number in options.concurrent.split(",")]
    found: dict[tuple[int, str], list[dict[str, float]]] = defaultdict(list)
    for round_number in range(1, options.rounds + 1):
        for number in numbers:
            for frontend in line_up.frontends:
                found[number, frontend.name].append(figures := await _run(frontend, number, options.requests))
                print(f"round {round_number}: {number} {frontend.name} {figures['p50 ms']:.2f} ms", file=sys.stderr, flush=True)
    rows = []
    for (number, name), runs in found.items():
        row: dict[str, Any] = {key: median(run[key] for run in runs) for key in runs[0]}
        if bound := found.get((number, BOUND)):
            for part in ("p50 ms", "p99 ms"):
                row[f"added {part}"] = row[part] - median(run[part] for run in bound)
        rows.append({"concurrent": number, "frontend": name, **row})
    return rows


def main(arguments: list[str] | None = None) -> None:
    """Run and print."""
    end_on_sigterm()
    parser = argparse.ArgumentParser("bench connect", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--concurrent", type=positives, default="1,16,64")
    parser.add_argument("--requests", type=positive, default=400, help="a run, at least")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--only", type=some_of((*FRONTENDS, "rust")), default=",".join(FRONTENDS))
    add_json_option(parser)
    options = parser.parse_args(arguments)
    allow_many_files()
    report = Report("connect", {key: str(value) for key, value in vars(options).items()})
    report.head()
    with LineUp(options.only.split(","), options.model, options.cache) as line_up:
        line_up.start(report.note)
        rows = uvloop.run(_measure(line_up, options))
    report.table("requests", f"Answers of one token, medians of {options.rounds} rounds", COLUMNS, rows)
    report.write(options.json)


if __name__ == "__main__":
    main()
