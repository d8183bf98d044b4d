"""What images in requests do to everybody else: `python -m bench.images [--seconds 10] [--rounds 3] [--streams 12]`.

Streams are read while nothing else happens, and while `--in-flight` requests with a new image each are under way all the time, in
turns, so that a busy machine hits both alike. Beside the gateway stands a naive server, under the same load. Measured: the time
between two tokens, at the client; the longest time that the event loop did not turn, in the server; CPU; and memory: of the
server, its decoding processes and its files in memory, before, at its highest, and after. Prints tables, and the same as JSON;
exit code 1 where the gateway misses a goal.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import httpx
import psutil  # type: ignore[import-untyped]
import uvloop

from bench.child import Child
from bench.image_load import Streams, add_options, be_nice
from bench.image_memory import Memory
from bench.image_servers import ADMIN_KEY, SERVERS
from bench.processes import end_on_sigterm

MAX_P99_RATIO: Final = 1.2
MAX_BLOCK_MS: Final = 20.0
MAX_MEMORY_RATIO: Final = 1.1
NICENESS_OF_SENDERS: Final = 10
"""More than that of the server: elsewhere clients have machines of their own."""

_LOOK_S: Final = 0.5
_SETTLE_S: Final = 2.0
_MB: Final = 1_000_000


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@dataclass
class Server:
    """One of the two, and who sends images to it."""

    name: str
    child: Child
    senders: Child
    key: str

    @property
    def port(self) -> int:
        return int(self.child.ready[1])

    def cpu_s(self) -> tuple[float, float]:
        """Seconds of the server and of its children."""
        process = psutil.Process(self.child.pid)
        return _cpu_s(process), sum(_cpu_s(child) for child in process.children(recursive=True))


def _start(name: str, options: argparse.Namespace, stack: ExitStack) -> Server:
    child = Child(["bench.image_servers", name, f"--interval-ms={options.interval_ms}", f"--nice={options.nice}"])
    stack.callback(child.stop)
    port, keys = child.ready[1], ["none", "none"]
    if name == "gateway":
        for index, tenant in enumerate(("default", "images")):
            answer = httpx.post(
                f"http://127.0.0.1:{port}/admin/v1/keys",
                json={"tenant": tenant},
                headers={"authorization": f"Bearer {ADMIN_KEY}"},
                trust_env=False,
            )
            answer.raise_for_status()
            keys[index] = answer.json()["secret"]
    more = [f"--{what}={getattr(options, what.replace('-', '_'))}" for what in ("in-flight", "images", "width", "height", "size")]
    senders = Child(["bench.image_load", "--port", port, "--key", keys[1], f"--nice={options.nice + NICENESS_OF_SENDERS}", *more])
    stack.callback(senders.stop)
    return Server(name, child, senders, keys[0])


async def _phase(server: Server, streams: Streams, seconds: float, *, with_images: bool) -> dict[str, Any]:
    """The figures of so many seconds; blocks of the loop are looked for until the last image is answered."""
    streams.take()
    server.child.ask("take")
    (server_s, workers_s), begun_s = server.cpu_s(), time.monotonic()
    if with_images:
        server.senders.tell("start")
    await asyncio.sleep(seconds)
    gaps_s, wall_s = sorted(streams.take()) or [float("inf")], time.monotonic() - begun_s
    sent = await asyncio.to_thread(server.senders.ask, "stop") if with_images else {}
    server_end_s, workers_end_s = server.cpu_s()
    whole_s = time.monotonic() - begun_s
    return {
        "tokens_per_s": len(gaps_s) / wall_s,
        "p50_ms": 1000 * gaps_s[len(gaps_s) // 2],
        "p99_ms": 1000 * gaps_s[len(gaps_s) * 99 // 100],
        "max_ms": 1000 * gaps_s[-1],
        **server.child.ask("take"),
        "server_cpu": (server_end_s - server_s) / whole_s,
        "workers_cpu": (workers_end_s - workers_s) / whole_s,
        "load_average": os.getloadavg()[0],
        **sent,
        **({"per_s": sent["num_all"] / whole_s} if sent else {}),
    }


async def _round(server: Server, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    streams = Streams()
    await streams.open(server.port, server.key, options.streams, options.interval_ms / 1000)
    await asyncio.sleep(1.0)
    try:
        alone = await _phase(server, streams, options.seconds, with_images=False)
        beside = await _phase(server, streams, options.seconds, with_images=True)
    finally:
        await streams.close()
    for name, figures in (("alone", alone), ("with images", beside)):
        print(f"{server.name:8} {name:12} {_shown(figures)}", file=sys.stderr, flush=True)
    return {"alone": alone, "with_images": beside}


def _shown(figures: dict[str, Any]) -> str:
    return json.dumps({name: round(value, 3) if isinstance(value, float) else value for name, value in figures.items()})


async def _settled(server: Server, memory: Memory) -> tuple[int, int]:
    await asyncio.sleep(_SETTLE_S)
    server.child.ask("collect")
    memory.find_children()
    return memory.server(), memory.whole()


def _watch(memories: Sequence[Memory], is_over: threading.Event) -> None:
    while not is_over.wait(_LOOK_S):
        for memory in memories:
            memory.whole()


async def _measure(servers: Sequence[Server], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Rounds and memory by the name of the server."""
    memories = {server.name: Memory(server.child.pid) for server in servers}
    found: dict[str, dict[str, Any]] = {server.name: {"rounds": []} for server in servers}
    for server in servers:
        found[server.name]["server_before_images"] = memories[server.name].server()
        server.senders.tell("start")
        await asyncio.sleep(options.warm_up)
        await asyncio.to_thread(server.senders.ask, "stop")
        found[server.name]["server_before"], found[server.name]["before"] = await _settled(server, memories[server.name])
        memories[server.name].peak = 0
    is_over = threading.Event()
    watching = threading.Thread(target=_watch, args=(list(memories.values()), is_over))
    watching.start()
    try:
        for _ in range(options.rounds):
            for server in servers:
                found[server.name]["rounds"].append(await _round(server, options))
    finally:
        is_over.set()
        watching.join()
    for server in servers:
        of_server = found[server.name]
        of_server["peak"] = memories[server.name].peak
        of_server["server_after"], of_server["after"] = await _settled(server, memories[server.name])
    return found


def _summary(found: dict[str, Any], options: argparse.Namespace) -> dict[str, float]:
    """Medians of the rounds, the worst of blocks."""
    alone, beside = ([of_round[phase] for of_round in found["rounds"]] for phase in ("alone", "with_images"))
    num_images = max(1, sum(figures["num_all"] for figures in beside) * options.images)
    more_cpu_ms = [
        1000 * (with_them["server_cpu"] - without["server_cpu"]) / max(1e-9, with_them["per_s"] * options.images)
        for without, with_them in zip(alone, beside, strict=True)
    ]
    workers_ms = [1000 * figures["workers_cpu"] / max(1e-9, figures["per_s"] * options.images) for figures in beside]
    return {
        "p50_alone_ms": median(figures["p50_ms"] for figures in alone),
        "p50_ms": median(figures["p50_ms"] for figures in beside),
        "p99_alone_ms": median(figures["p99_ms"] for figures in alone),
        "p99_ms": median(figures["p99_ms"] for figures in beside),
        "p99_ratio": median(b["p99_ms"] / a["p99_ms"] for a, b in zip(alone, beside, strict=True)),
        "block_alone_ms": max(figures["block_ms"] for figures in alone),
        "block_ms": max(figures["block_ms"] for figures in beside),
        "block_wall_ms": max(figures["block_wall_ms"] for figures in beside),
        "images_per_s": median(figures["per_s"] for figures in beside) * options.images,
        "num_images": num_images,
        "num_failed": sum(figures["num_failed"] for figures in beside),
        "server_cpu_ms_an_image": median(more_cpu_ms),
        "workers_cpu_ms_an_image": median(workers_ms),
        "server_before_images_mb": found["server_before_images"] / _MB,
        "server_before_mb": found["server_before"] / _MB,
        "server_after_mb": found["server_after"] / _MB,
        "before_mb": found["before"] / _MB,
        "peak_mb": found["peak"] / _MB,
        "after_mb": found["after"] / _MB,
        "memory_ratio": found["after"] / found["before"],
    }


def _print(summaries: dict[str, dict[str, float]]) -> None:
    print(f"{'':26}" + "".join(f"{name:>12}" for name in summaries))
    for what in next(iter(summaries.values())):
        print(f"{what:26}" + "".join(f"{summary[what]:12.2f}" for summary in summaries.values()))


def _missed(gateway: dict[str, float]) -> list[str]:
    """Goals of the gateway that it misses."""
    goals = {"p99_ratio": MAX_P99_RATIO, "block_ms": MAX_BLOCK_MS, "memory_ratio": MAX_MEMORY_RATIO, "num_failed": 0}
    return [f"{name} is {gateway[name]:.2f}, goal {goal:g}" for name, goal in goals.items() if gateway[name] > goal]


def main() -> int:
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each phase")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=12)
    parser.add_argument("--interval-ms", type=float, default=25.0, help="between two tokens of a stream")
    parser.add_argument("--warm-up", type=float, default=3.0, help="seconds of images before memory is first looked at")
    parser.add_argument("--nice", type=int, default=0, help="of servers and readers, where others use the machine, too")
    parser.add_argument("--servers", default=",".join(SERVERS))
    add_options(parser)
    options = parser.parse_args()
    be_nice(options.nice)
    with ExitStack() as stack:
        servers = [_start(name, options, stack) for name in options.servers.split(",")]
        found = uvloop.run(_measure(servers, options))
    summaries = {name: _summary(of_server, options) for name, of_server in found.items()}
    _print(summaries)
    missed = _missed(summaries["gateway"]) if "gateway" in summaries else []
    print("\n".join(missed) or "all goals are met")
    print(json.dumps({"options": vars(options), "found": found, "summary": summaries}))
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
