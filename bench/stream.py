"""What a streamed token costs: the gateway with all its controls against what else can stand in front of the same engine core.

    python -m bench stream [--model DIR] [--streams 32,128] [--paced 40:128] [--rounds 3] [--full] [--json FILE]

All servers run side by side and are measured in turn, round by round, so that a drifting machine hits all alike. Over the same
fake core in the server's own process: `gateway`, `gateway-off` (without the controls that can be taken away), vLLM's own server
(`vllm`; `vllm-k3` with its parsers of K3's answers), and two lower bounds: `asgi`, written by hand without parsing, and `direct`,
`AsyncLLM` with no HTTP. Over a core in a process of its own: vLLM's Rust frontend (`rust`, from the GPU wheel of 0.33), and the
gateway beside it (`gateway-zmq`), which then decodes what a core sends, as in production.

The figure is CPU seconds of the server's process for 1000 tokens. All streams of a run start together, in the worst case for the
time to the first token (TTFT); at a pace each comes at its own time within a step.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import uvloop

from bench.core_plan import KINDS
from bench.line_up import Frontend, LineUp, add_options
from bench.options import paces, positive, positives, positives_or_none, some_of
from bench.processes import allow_many_files, end_on_sigterm
from bench.report import Report, add_json_option, ratio

FRONTENDS: Final = ("gateway", "gateway-off", "vllm", "asgi", "direct", "gateway-zmq", "rust")
PARSING: Final = ("vllm-k3",)
ONLY_TEXT: Final = frozenset({"vllm", "rust"})
"""They have no parser of K3's answers here."""
COLUMNS: Final = {
    "frontend": "", "s/1000 tokens": ".4f", "least": ".4f", "most": ".4f", "of vllm": ".2f", "tokens/s": ",.0f", "cores": ".2f",
    "TTFT p50 ms": ".1f", "p99 ms": ".1f", "chunks/token": ".2f",
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """What all are measured at. `steps_per_s` 0: as fast as it goes."""

    kind: str
    tokens_per_step: int
    steps_per_s: float
    num_streams: int

    @property
    def title(self) -> str:
        pace = f"{self.steps_per_s:g} steps/s" if self.steps_per_s else "as fast as it goes"
        return f"{self.kind}, {self.num_streams} streams, {pace}, {self.tokens_per_step} tokens a step"

    def num_requests(self, waves: int) -> int:
        """At a pace one wave: it takes long enough."""
        return self.num_streams if self.steps_per_s else max(self.num_streams * waves, 8)


def _settings(options: argparse.Namespace) -> Iterator[Setting]:
    for kind in options.kinds.split(","):
        for tokens_per_step in map(int, options.tokens_per_step.split(",")):
            for num_streams in map(int, filter(None, options.streams.split(","))):
                yield Setting(kind, tokens_per_step, 0.0, num_streams)
            for paced in filter(None, options.paced.split(",")):
                steps_per_s, num_streams = paced.split(":")
                yield Setting(kind, tokens_per_step, float(steps_per_s), int(num_streams))


async def _measure(line_up: LineUp, settings: list[Setting], options: argparse.Namespace) -> dict[Setting, dict[str, list[Any]]]:
    found: dict[Setting, dict[str, list[Any]]] = {setting: defaultdict(list) for setting in settings}
    for round_number in range(1, options.rounds + 1):
        for setting in settings:
            for frontend in line_up.frontends:
                if setting.kind != "text" and frontend.name in ONLY_TEXT:
                    continue
                figures = await _run(frontend, setting, options)
                found[setting][frontend.name].append(figures)
                figure = figures["cpu_s_per_1000_tokens"]
                print(f"round {round_number}: {setting.title}: {frontend.name} {figure:.4f}", file=sys.stderr, flush=True)
    return found


async def _run(frontend: Frontend, setting: Setting, options: argparse.Namespace) -> dict[str, float]:
    return await frontend.measure(
        kind=setting.kind,
        steps_per_s=setting.steps_per_s,
        tokens_per_step=setting.tokens_per_step,
        num_streams=setting.num_streams,
        num_tokens=options.tokens,
        num_requests=setting.num_requests(options.waves),
    )


def _rows(found: dict[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    costs = {name: [run["cpu_s_per_1000_tokens"] for run in runs] for name, runs in found.items()}
    to = next((median(costs[name]) for name in ("vllm", "vllm-k3") if name in costs), None)
    rows = []
    for name, runs in found.items():
        middle = {key: median(run[key] for run in runs) for key in runs[0]}
        cost = costs[name]
        rows.append(
            {
                "frontend": name,
                "s/1000 tokens": median(cost),
                "least": min(cost),
                "most": max(cost),
                "of vllm": ratio(median(cost), to),
                "tokens/s": middle["tokens_per_s"],
                "cores": middle["cpu_share"],
                "TTFT p50 ms": middle["ttft_p50_ms"],
                "p99 ms": middle["ttft_p99_ms"],
                "chunks/token": middle["chunks_per_token"],
            }
        )
    return rows


def _ratios(setting: Setting, rows: list[dict[str, Any]]) -> dict[str, Any]:
    cost = {row["frontend"]: row["s/1000 tokens"] for row in rows}
    ttft = {row["frontend"]: row["TTFT p50 ms"] for row in rows}
    return {
        "setting": setting.title,
        "to vllm": ratio(cost.get("gateway"), cost.get("vllm", cost.get("vllm-k3"))),
        "to asgi": ratio(cost.get("gateway"), cost.get("asgi")),
        "to direct": ratio(cost.get("gateway"), cost.get("direct")),
        "on/off": ratio(cost.get("gateway"), cost.get("gateway-off")),
        "zmq to rust": ratio(cost.get("gateway-zmq"), cost.get("rust")),
        "to rust": ratio(cost.get("gateway"), cost.get("rust")),
        "TTFT to vllm": ratio(ttft.get("gateway"), ttft.get("vllm", ttft.get("vllm-k3"))),
    }


def main(arguments: list[str] | None = None) -> None:
    """Run and print."""
    end_on_sigterm()
    parser = argparse.ArgumentParser("bench stream", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--streams", type=positives_or_none, default="32,128", help="at once, as fast as it goes; empty for none")
    parser.add_argument("--paced", type=paces, default="40:128", help="STEPS/S:STREAMS,…; empty for none")
    parser.add_argument("--kinds", type=some_of(KINDS), default="text", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--tokens-per-step", type=positives, default="1")
    parser.add_argument("--tokens", type=positive, default=256, help="of each answer")
    parser.add_argument("--waves", type=positive, default=2, help="answers for each stream, as fast as it goes")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--only", type=some_of((*FRONTENDS, *PARSING)), help=f"of {', '.join((*FRONTENDS, *PARSING))}")
    parser.add_argument("--full", action="store_true", help="the whole matrix, which takes hours on two cores")
    add_json_option(parser)
    options = parser.parse_args(arguments)
    if options.full:
        options.streams, options.tokens_per_step, options.kinds = "1,32,128,512", "1,4", ",".join(KINDS)
        options.paced = ",".join(f"{rate}:{number}" for rate in (40, 100) for number in (1, 32, 128, 512))
    settings = list(_settings(options))
    if not settings:
        parser.error("`--streams` and `--paced` are both empty: there is nothing to measure")
    parsing = PARSING if any(setting.kind != "text" for setting in settings) else ()
    names = options.only.split(",") if options.only else [*FRONTENDS, *parsing]
    allow_many_files()
    report = Report("stream", {key: str(value) for key, value in vars(options).items()})
    report.head()
    with LineUp(names, options.model, options.cache) as line_up:
        line_up.start(report.note)
        found = uvloop.run(_warm_and_measure(line_up, settings, options))
    ratios = []
    for number, setting in enumerate(settings):
        rows = _rows(found[setting])
        ratios.append(_ratios(setting, rows))
        report.table(f"setting_{number}", f"{setting.title}: CPU s per 1000 tokens, medians of {options.rounds}", COLUMNS, rows)
    columns = {key: "" if key == "setting" else ".2f" for key in ratios[0]}
    report.table("ratios", "The gateway's cost by that of others", columns, ratios)
    report.write(options.json)


async def _warm_and_measure(line_up: LineUp, settings: list[Setting], options: argparse.Namespace) -> Any:
    await line_up.wait_serving()
    for kind in dict.fromkeys(setting.kind for setting in settings):
        for frontend in line_up.frontends:
            if kind == "text" or frontend.name not in ONLY_TEXT:
                await _run(frontend, Setting(kind, 1, 0.0, 8), argparse.Namespace(tokens=64, waves=2))
    return await _measure(line_up, settings, options)


if __name__ == "__main__":
    main()
