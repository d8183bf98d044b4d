"""A client with a valid key, alone and beside a flood of wrong ones: `python -m bench.wrong_keys`.

Prints the valid client's time to a whole answer and what the flood got through. The flood comes from this address, too, over
connections that are kept (`--connections`) or made anew for each request (`--anew`), as fast as answers come up to `--rate`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time

from bench.load import cpu_s
from bench.processes import end_on_sigterm

KEY = "k3gw-valid-key-of-the-bench"
WRONG = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer k3gw-wrong\r\ncontent-length: 2\r\n\r\n{}"


def main() -> None:
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rate", type=int, default=10_000, help="wrong keys a second")
    parser.add_argument("--connections", type=int, default=256)
    parser.add_argument("--anew", action="store_true", help="a new connection for each wrong key")
    wanted = parser.parse_args()
    command = [sys.executable, "-m", "server", "serve", "--engine", "scripted", "--port", "0"]
    with (
        tempfile.TemporaryFile("w+") as log,
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, env=_environment(folder), stderr=log) as server,
    ):
        try:
            port = _port(log.name, server)
            for flooded in (False, True):
                print(json.dumps(_measured(port, server.pid, flooded, wanted)), flush=True)
            print(json.dumps({"log_bytes": os.fstat(log.fileno()).st_size}))
        finally:
            server.terminate()


def _environment(folder: str) -> dict[str, str]:
    """The gateway's: a key, and a store of its own."""
    storage = {"K3GW_STORAGE__LEDGER_URL": f"sqlite:///{folder}/gateway.db", "K3GW_STORAGE__SPOOL_PATH": f"{folder}/spool"}
    return {**os.environ, **storage, "K3GW_TENANCY__KEY": KEY}


def _port(log: int | str, server: subprocess.Popen[bytes]) -> int:
    until_s = time.monotonic() + 20
    while time.monotonic() < until_s and server.poll() is None:
        with open(f"/proc/self/fd/{log}", encoding="utf-8") as file:
            if found := re.search(r"base URL +http://127.0.0.1:(\d+)", file.read()):
                return int(found[1])
        time.sleep(0.05)
    raise SystemExit("the gateway did not start")


def _measured(port: int, pid: int, flooded: bool, wanted: argparse.Namespace) -> dict[str, object]:
    context = multiprocessing.get_context("spawn")
    num_refused = context.Value("q", 0)
    flood = context.Process(target=_flood, args=(port, wanted.rate, wanted.connections, wanted.anew, num_refused), daemon=True)
    if flooded:
        flood.start()
        time.sleep(3)  # its burst is over
    before_s, before, started_s = cpu_s(pid), num_refused.value, time.perf_counter()
    latencies_s = sorted(asyncio.run(_ask(port, wanted.seconds)))
    wall_s = time.perf_counter() - started_s
    figures = {
        "flooded": flooded,
        "answers": len(latencies_s),
        "p50_ms": round(latencies_s[len(latencies_s) // 2] * 1000, 2),
        "p99_ms": round(latencies_s[int(len(latencies_s) * 0.99)] * 1000, 2),
        "wrong_keys_answered_per_s": round((num_refused.value - before) / wall_s),
        "server_cpu": round((cpu_s(pid) - before_s) / wall_s, 2),
        "server_rss_mib": _rss_mib(pid),
    }
    if flooded:
        flood.kill()
    return figures


def _rss_mib(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


async def _ask(port: int, seconds: float) -> list[float]:
    """Latencies of one valid request after another, 50 a second at most, over one connection."""
    body = json.dumps({"model": "kimi-k3", "messages": [{"role": "user", "content": "hi"}]})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    latencies_s = []
    until_s = time.perf_counter() + seconds
    while (started_s := time.perf_counter()) < until_s:
        writer.write((head + body).encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in answer[:20]:
            raise SystemExit(f"the server refused a valid key: {answer!r}")
        length = re.search(rb"content-length: (\d+)", answer)
        await reader.readexactly(int(length[1]) if length else 0)
        latencies_s.append(time.perf_counter() - started_s)
        await asyncio.sleep(max(0.0, 0.02 - latencies_s[-1]))
    writer.close()
    return latencies_s


def _flood(port: int, rate: int, num_connections: int, anew: bool, num_refused: object) -> None:
    asyncio.run(_flood_all(port, rate / num_connections, num_connections, anew, num_refused))


async def _flood_all(port: int, rate_each: float, num_connections: int, anew: bool, num_refused: object) -> None:
    await asyncio.gather(*(_flood_one(port, 1 / rate_each, anew, num_refused) for _ in range(num_connections)))


async def _flood_one(port: int, interval_s: float, anew: bool, num_refused: object) -> None:
    next_s = time.monotonic()
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            while True:
                writer.write(WRONG)
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head)
                await reader.readexactly(int(length[1]) if length else 0)
                num_refused.value += 1  # type: ignore[attr-defined]
                next_s += interval_s
                await asyncio.sleep(max(0.0, next_s - time.monotonic()))
                if anew or b"connection: close" in head:
                    break
            writer.close()
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    main()
