"""Long prompts: what the next turn of a long conversation costs, and what other streams feel of it.

    python -m bench.prompt --vocab FILE [--model DIR] [--tokens 1000,10000,100000,1000000] [--seconds 5] [--rounds 3]

First, in this process and for each length: parsing a request, and rendering and tokenising it, cold and as the next turn of a
conversation that was seen before. Then a gateway in a process of its own serves streams, 40 tokens a second each, in turns alone,
beside next turns of a conversation of the greatest length, and beside cold ones; measured are the time between two tokens, at the
client, and the longest time that the event loop did not turn. With `--model` it serves over vLLM's `AsyncLLM`, else over an
engine that costs nothing. Prints tables, and the same as JSON; exit code 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx
import uvloop

from bench.child import Child
from bench.conversations import Talk, body_of, num_turns_of
from bench.image_load import Streams, be_nice
from bench.options import existing, model_folder, positive, positives, some_of
from bench.processes import ROOT, end_on_sigterm
from bench.prompt_servers import ADMIN_KEY, CONTEXT_LENGTH
from server.prompts.base import Conversation
from server.prompts.kimi_k3 import KimiK3Format
from server.protocol import chat
from server.sections import EngineSettings
from server.vocabulary.load import load

MAX_BLOCK_MS: Final = 20.0
MAX_P99_RATIO: Final = 1.2
MAX_NEXT_RATIO: Final = 0.15
PHASES: Final = ("alone", "next", "cold")
_NICENESS_OF_SENDER: Final = 10


async def _rendered(vocabulary_path: Path, num_tokens: int, rounds: int) -> dict[str, float]:
    """Milliseconds for a conversation of about `num_tokens`; the best of `rounds`."""
    kimi = KimiK3Format(
        load(vocabulary_path), CONTEXT_LENGTH, known_texts_bytes=EngineSettings.model_fields["known_texts_bytes"].default
    )
    talk, num_turns = Talk(), num_turns_of(num_tokens)
    best = {"parse": float("inf"), "cold": float("inf"), "next": float("inf")}
    found: dict[str, float] = {}
    for number in range(rounds):
        before = Conversation(talk.messages(num_turns, f"round {number}"))
        body = body_of(talk.messages(num_turns + 1, f"round {number}"))
        begun_s = time.perf_counter()
        wanted = chat.parse(body)
        parsed_s = time.perf_counter()
        await kimi.render(before, "group")
        cold_s = time.perf_counter()
        prompt = await kimi.render(Conversation(wanted.messages), "group")
        next_s = time.perf_counter()
        times_s = {"parse": parsed_s - begun_s, "cold": cold_s - parsed_s, "next": next_s - cold_s}
        best = {name: min(of, 1000 * times_s[name]) for name, of in best.items()}
        found = {"messages": len(wanted.messages), "bytes": len(body), "tokens": len(prompt.token_ids)}
    return {**found, **best, "ratio": best["next"] / best["cold"]}


def _print_rendered(rows: list[dict[str, float]]) -> None:
    print(f"{'tokens':>9} {'messages':>9} {'bytes':>9} {'parse ms':>9} {'cold ms':>9} {'next turn ms':>13} {'ratio':>6}")
    for row in rows:
        print(
            f"{row['tokens']:9} {row['messages']:9} {row['bytes']:9} {row['parse']:9.2f} {row['cold']:9.1f} {row['next']:13.2f} "
            f"{row['ratio']:6.3f}"
        )


async def _phase(server: Child, sender: Child, streams: Streams, phase: str, seconds: float) -> dict[str, Any]:
    streams.take()
    server.ask("take")
    sent: dict[str, Any] = {}
    if phase == "alone":
        await asyncio.sleep(seconds)
    else:
        sent = await asyncio.to_thread(sender.ask, f"{phase} {seconds}")
    gaps_s = sorted(streams.take()) or [float("inf")]
    return {
        "p50_ms": 1000 * gaps_s[len(gaps_s) // 2],
        "p99_ms": 1000 * gaps_s[len(gaps_s) * 99 // 100],
        "max_ms": 1000 * gaps_s[-1],
        **server.ask("take"),
        "load_average": os.getloadavg()[0],
        **sent,
    }


def _new_key(port: str) -> str:
    answer = httpx.post(
        f"http://127.0.0.1:{port}/admin/v1/keys",
        json={"tenant": "default"},
        headers={"authorization": f"Bearer {ADMIN_KEY}"},
        trust_env=False,
    )
    answer.raise_for_status()
    return str(answer.json()["secret"])


async def _measure(server: Child, options: argparse.Namespace, num_tokens: int) -> list[dict[str, dict[str, Any]]]:
    port, rounds = server.ready[1], []
    key = await asyncio.to_thread(_new_key, port)
    more = [f"--tokens={num_tokens}", f"--rest-s={options.rest_s}", f"--nice={options.nice + _NICENESS_OF_SENDER}"]
    sender = Child(["bench.prompt_load", "--port", port, "--key", key, *more])
    try:
        for number in range(options.rounds):
            streams = Streams()
            await streams.open(int(port), key, options.streams, 0.025)
            await asyncio.sleep(1.0)
            found = {}
            for phase in options.phases.split(","):
                found[phase] = await _phase(server, sender, streams, phase, options.seconds)
                shown = {name: round(value, 3) for name, value in found[phase].items()}
                print(f"round {number + 1}: {phase:6} {json.dumps(shown)}", file=sys.stderr, flush=True)
            rounds.append(found)
            await streams.close()
    finally:
        sender.stop()
    return rounds


def _summary(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Medians of the rounds by phase, and the worst of blocks."""
    summary: dict[str, dict[str, float]] = {}
    for phase in rounds[0]:
        of_phase = [found[phase] for found in rounds]
        ratios = [found[phase]["p99_ms"] / found["alone"]["p99_ms"] for found in rounds if "alone" in found]
        summary[phase] = {
            **{name: median(of[name] for of in of_phase) for name in ("p50_ms", "p99_ms", "max_ms")},
            "p99_ratio": median(ratios or [1.0]),
            "block_ms": max(of["block_ms"] for of in of_phase),
            "block_wall_ms": max(of["block_wall_ms"] for of in of_phase),
            "requests": sum(of.get("num", 0) for of in of_phase),
            "request_ms": 1000 * median(of.get("median_s", 0.0) for of in of_phase),
            "load": max(of["load_average"] for of in of_phase),
        }
    return summary


def _missed(rows: list[dict[str, float]], summary: dict[str, dict[str, float]]) -> list[str]:
    """Goals for the next turn of the longest conversation that are missed."""
    figures = {"the next turn's share of the cold time": (rows[-1]["ratio"], MAX_NEXT_RATIO)} if rows else {}
    if turn := summary.get("next"):
        figures["the longest block in ms"] = (turn["block_ms"], MAX_BLOCK_MS)
        figures["p99 between tokens, by that of streams alone"] = (turn["p99_ratio"], MAX_P99_RATIO)
    return [f"{name} is {value:.3g}, goal {goal:g}" for name, (value, goal) in figures.items() if value > goal]


def _served(options: argparse.Namespace, num_tokens: int) -> list[dict[str, dict[str, Any]]]:
    engine = [f"--model={options.model}"] if options.model else [f"--vocab={options.vocab}"]
    if options.known_texts is not None:
        engine.append(f"--known-texts={options.known_texts}")
    with ExitStack() as stack:
        server = Child(["bench.prompt_servers", *engine, f"--nice={options.nice}"])
        stack.callback(server.stop)
        rounds: list[dict[str, dict[str, Any]]] = uvloop.run(_measure(server, options, num_tokens))
    return rounds


def main() -> int:
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--vocab", type=existing, default=str(ROOT / ".cache/demo-model"), help="a model's folder, or its tokenizer's file"
    )
    parser.add_argument("--model", type=model_folder, help="a model's folder, for vLLM; weights are not read")
    parser.add_argument("--tokens", type=positives, default="1000,10000,100000,1000000")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each phase")
    parser.add_argument("--phases", type=some_of(PHASES), default=",".join(PHASES))
    parser.add_argument("--streams", type=positive, default=12)
    parser.add_argument("--rest-s", type=float, default=1.0, help="between an answer and the next request")
    parser.add_argument("--known-texts", type=int, help="bytes of token ids that the server keeps; left out: the default")
    parser.add_argument("--nice", type=int, default=0)
    options = parser.parse_args()
    be_nice(options.nice)
    lengths = [int(number) for number in options.tokens.split(",")]
    rows = [asyncio.run(_rendered(options.model or options.vocab, length, options.rounds)) for length in lengths]
    _print_rendered(rows)
    rounds = _served(options, lengths[-1]) if options.seconds else []
    summary = _summary(rounds) if rounds else {}
    if summary:
        print(f"\n{'':15}" + "".join(f"{phase:>10}" for phase in summary))
        for name in summary["alone" if "alone" in summary else next(iter(summary))]:
            print(f"{name:15}" + "".join(f"{figures[name]:10.2f}" for figures in summary.values()))
    missed = _missed(rows, summary)
    print("\n".join(missed) or "all goals are met")
    machine = f"{os.cpu_count()} CPUs, Python {platform.python_version()}"
    print(json.dumps({"machine": machine, "rendered": rows, "rounds": rounds, "summary": summary}))
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
