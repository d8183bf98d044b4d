"""Whether calls of tools that a model has never seen are delivered, and fit what the tools declare.

    python -m bench.tool_schemas --url http://127.0.0.1:8000/v1 --key KEY [--temperature 0,1] [--stream both] [--concurrency 16]

Each schema is the `parameters` of one tool in a request of its own, with `tool_choice: required`. Prints each fault with what was
answered, a table of the modes, and "N of N calls delivered and valid".
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs

from bench.chat_answers import Answer, ask
from bench.processes import end_on_sigterm

SCHEMAS = Path(__file__).resolve().parents[1] / "tests" / "data" / "tool_schemas"
NAMES = ("agents", "business", "values", "containers", "combined", "generators")
BEYOND_GRAMMAR = "beyond_grammar"
"""Schemas with keywords that no grammar holds: calls are delivered, and may not fit."""

MAX_TOKENS = 800
"""A client's usual limit is far above: here so that an answer that does not end is told soon."""

_MARKERS = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")
_MAX_SHOWN = 400
_TIMEOUT_S = 300.0


class DuplicateKeyError(ValueError):
    """An object in arguments has a key twice. Readers of JSON keep the last; validators never see it."""


@dataclass(frozen=True)
class Case:
    """One tool."""

    name: str
    parameters: dict[str, Any]
    example: dict[str, Any]

    @property
    def description(self) -> str:
        """What the model is told that the tool does."""
        return f"Does {self.name.replace('_', ' ')}."


@dataclass(frozen=True)
class Mode:
    """How a call is asked for."""

    stream: bool
    temperature: float
    thinking: bool = False

    def __str__(self) -> str:
        return (
            f"{'streamed' if self.stream else 'whole':8} temperature {self.temperature:g}{' thinking' if self.thinking else ''}"
        )


@dataclass(frozen=True)
class Fault:
    """A call that was not delivered, or does not fit. `kind` is one of a few words; `detail` says what came."""

    case: Case
    mode: Mode
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind:10} {self.case.name} ({self.mode}): {self.detail}"


ALL_MODES = tuple(Mode(stream, temperature) for stream in (False, True) for temperature in (0.0, 1.0))


def load(names: Iterable[str] = NAMES) -> list[Case]:
    """The tools of the files `names`."""
    entries = [entry for name in names for entry in json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))]
    return [Case(entry["name"], entry["parameters"], entry["example"]) for entry in entries]


def spread(cases: Sequence[Case], modes: Sequence[Mode], seed: int) -> list[tuple[Case, Mode]]:
    """Each case in one mode, each mode as often as the others."""
    shuffled = random.Random(seed).sample(cases, len(cases))
    return [(case, modes[number % len(modes)]) for number, case in enumerate(shuffled)]


def request_of(case: Case, mode: Mode, model: str, max_tokens: int) -> dict[str, Any]:
    """The body that asks for one call."""
    function = {"name": case.name, "description": case.description, "parameters": case.parameters}
    return {
        "model": model,
        "messages": [{"role": "user", "content": f"Call {case.name} with arguments of your choice. Keep all texts short."}],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
        "temperature": mode.temperature,
        "max_tokens": max_tokens,
        "stream": mode.stream,
        "thinking": {"type": "enabled" if mode.thinking else "disabled"},
    }


def fault_of(case: Case, mode: Mode, answer: Answer) -> Fault | None:
    """What is wrong with `answer`, None where nothing is."""

    def fault(kind: str, detail: str) -> Fault:
        return Fault(
            case, mode, kind, detail if len(detail) <= _MAX_SHOWN else f"{detail[:_MAX_SHOWN]}… ({len(detail)} characters)"
        )

    if answer.status != 200:
        return fault("refused", f"{answer.status} {answer.content}")
    if answer.broken:
        return fault("broken", answer.broken)
    if answer.finish_reason == "length":
        return fault("truncated", f"{answer.content!r} {answer.calls}")
    if not answer.calls:
        return fault("no call", f"{answer.finish_reason}: {answer.content!r}")
    if answer.finish_reason != "tool_calls":
        return fault("finish", f"{answer.finish_reason} although there are calls: {answer.calls}")
    if any(marker in answer.content for marker in _MARKERS):
        return fault("leak", answer.content)
    for name, text in answer.calls:
        if name != case.name:
            return fault("wrong tool", name)
        if found := _misfit(case, text):
            return fault(*found)
    return None


def _misfit(case: Case, text: str) -> tuple[str, str] | None:
    """Kind and detail of what is wrong with a call's arguments."""
    try:
        arguments = json.loads(text, object_pairs_hook=_distinct)
    except DuplicateKeyError as error:
        return "duplicate", f"{error}: {text}"
    except ValueError as error:
        return "not JSON", f"{error}: {text}"
    if not isinstance(arguments, dict):
        return "not JSON", f"no object: {text}"
    for formats in (False, True):
        validator = jsonschema_rs.validator_for(case.parameters, validate_formats=formats)
        for misfit in validator.iter_errors(arguments):
            where = "/".join(map(str, misfit.instance_path))
            return ("format" if formats else "invalid"), f"at /{where}: {misfit.message}; arguments: {text}"
    return None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise DuplicateKeyError(f"a key comes twice among {[key for key, _ in pairs]}")
    return found


async def run(
    url: str,
    key: str,
    plan: Sequence[tuple[Case, Mode]],
    *,
    model: str = "kimi-k3",
    max_tokens: int = MAX_TOKENS,
    concurrency: int = 16,
) -> list[Fault]:
    """Ask for each call of `plan`, `concurrency` at a time. `url`: with the version, as in `http://127.0.0.1:8000/v1`."""
    gate = asyncio.Semaphore(concurrency)
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=_TIMEOUT_S) as client:

        async def one(case: Case, mode: Mode) -> Fault | None:
            async with gate:
                try:
                    answer = await ask(client, request_of(case, mode, model, max_tokens))
                except (httpx.HTTPError, ValueError, KeyError) as error:
                    answer = Answer(broken=repr(error))
            return fault_of(case, mode, answer)

        faults = await asyncio.gather(*(one(case, mode) for case, mode in plan))
    return [fault for fault in faults if fault is not None]


def table(plan: Sequence[tuple[Case, Mode]], faults: Sequence[Fault]) -> str:
    """Calls by mode, each with its faults by kind."""
    lines = [f"{'mode':30} {'calls':>6} {'right':>6}  faults"]
    for mode in dict.fromkeys(mode for _, mode in plan):
        num_calls = sum(other == mode for _, other in plan)
        kinds = Counter(fault.kind for fault in faults if fault.mode == mode)
        words = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()) or "none"
        lines.append(f"{mode!s:30} {num_calls:6} {num_calls - kinds.total():6}  {words}")
    return "\n".join([*lines, f"{len(plan) - len(faults)} of {len(plan)} calls delivered and valid"])


def main() -> None:
    """Run and print. Exits with 1 where a call is missing or does not fit."""
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--key", required=True)
    parser.add_argument("--model", default="kimi-k3")
    parser.add_argument("--temperature", default="0,1")
    parser.add_argument("--stream", choices=("no", "yes", "both"), default="both")
    parser.add_argument("--thinking", action="store_true", help="let the model reason first")
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--files", default=",".join(NAMES), help=f"of {', '.join((*NAMES, BEYOND_GRAMMAR))}")
    parser.add_argument("--only", default="", help="names of schemas, with commas")
    parser.add_argument("--spread", type=int, help="each schema in one mode only, chosen with this seed")
    options = parser.parse_args()
    streams = {"no": (False,), "yes": (True,), "both": (False, True)}[options.stream]
    temperatures = [float(number) for number in options.temperature.split(",")]
    modes = [Mode(stream, temperature, options.thinking) for stream in streams for temperature in temperatures]
    only = set(filter(None, options.only.split(",")))
    cases = [case for case in load(options.files.split(",")) if not only or case.name in only]
    plan = [(case, mode) for mode in modes for case in cases]
    if options.spread is not None:
        plan = spread(cases, modes, options.spread)
    began_s = time.monotonic()
    faults = asyncio.run(
        run(options.url, options.key, plan, model=options.model, max_tokens=options.max_tokens, concurrency=options.concurrency)
    )
    for fault in sorted(faults, key=str):
        print(fault)
    print(table(plan, faults))
    print(f"{time.monotonic() - began_s:.0f} s", file=sys.stderr)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
