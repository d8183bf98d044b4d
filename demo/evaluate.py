"""Judges a demo checkpoint on vLLM's CPU build, greedily and without a grammar: `python -m demo.evaluate MODEL_DIR`.

Well formed means: ended by itself, and the gateway's parser found nothing to read around. Right means: well formed, and the
calls, the text or the JSON that the case asks for. Prints a table, then every miss.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.cases import CASES, Case
from demo.engine import generate
from server.events import ContentDelta, ToolCallArguments, ToolCallStart
from server.parsers.base import Expected
from server.parsers.factory import ParserFactory
from server.prompts.kimi_k3 import KimiK3Format
from server.vocabulary.base import Vocabulary
from server.vocabulary.load import load

_MOST_TOKENS = 200


@dataclass(slots=True, frozen=True)
class Verdict:
    """How one case went. `output`: the generated text, markers included."""

    case: Case
    faults: list[str]
    right: bool
    output: str


def read(case: Case, token_ids: Sequence[int], vocabulary: Vocabulary) -> tuple[str, list[tuple[str, Any]], list[str]]:
    """Text, calls, and what is wrong with the form of an answer."""
    declared = [tool["function"]["name"] for tool in case.tools]
    parser = ParserFactory("kimi_k3", vocabulary).make(thinking=case.effort is not None, expected=Expected(tool_names=declared))
    ended = bool(token_ids) and token_ids[-1] == vocabulary.control["<|end_of_msg|>"]
    events = [*parser.feed(token_ids), *parser.finish("stop" if ended else "length")]
    text = "".join(event.text for event in events if isinstance(event, ContentDelta))
    calls: list[list[str]] = []
    for event in events:
        if isinstance(event, ToolCallStart):
            calls.append([event.name, ""])
        elif isinstance(event, ToolCallArguments):
            calls[event.index][1] += event.fragment
    faults = [*parser.recoveries, *([] if ended else ["no_end"])]
    return text, [(name, _json(arguments)) for name, arguments in calls], faults


def _json(text: str) -> Any:
    """The value of a JSON text; the text itself where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def right(case: Case, text: str, calls: Sequence[tuple[str, Any]]) -> bool:
    """Whether a well-formed answer is the one that `case` asks for. True and 1 are different values."""
    if json.dumps(calls, sort_keys=True) != json.dumps(list(case.calls), sort_keys=True):
        return False
    if case.json_answer is not None:
        return json.dumps(_json(text), sort_keys=True) == json.dumps(case.json_answer, sort_keys=True)
    return bool(case.calls) or (bool(text.strip()) and all(word in text for word in case.contains))


async def evaluate(model: Path) -> list[Verdict]:
    """A verdict for each case."""
    vocabulary = load(model)
    prompt_format = KimiK3Format(vocabulary)
    prompts = [(await prompt_format.render(case.conversation())).token_ids for case in CASES]
    outputs = generate(model, prompts, [_MOST_TOKENS] * len(prompts), stop_ids=[])
    verdicts = []
    for case, token_ids in zip(CASES, outputs, strict=True):
        text, calls, faults = read(case, token_ids, vocabulary)
        verdicts.append(Verdict(case, faults, not faults and right(case, text, calls), vocabulary.decode(token_ids)))
    return verdicts


def table(verdicts: Sequence[Verdict]) -> str:
    """Counts of each group, of the thinking modes and of all, as Markdown."""
    groups = {group: [v for v in verdicts if v.case.group == group] for group in dict.fromkeys(v.case.group for v in verdicts)}
    groups |= {
        "thinking max": [v for v in verdicts if v.case.effort == "max"],
        "thinking off": [v for v in verdicts if not v.case.effort],
    }
    groups["all"] = list(verdicts)
    lines = ["| group | cases | well formed | right |", "|---|---|---|---|"]
    for group, of_group in groups.items():
        lines.append(f"| {group} | {len(of_group)} | {sum(not v.faults for v in of_group)} | {sum(v.right for v in of_group)} |")
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path, help="folder of the checkpoint, as `k3-gateway demo-model` writes it")
    verdicts = asyncio.run(evaluate(parser.parse_args().model))
    print(table(verdicts))
    for verdict in verdicts:
        if not verdict.right:
            case, output = verdict.case, verdict.output.replace("\n", "⏎")[:400]
            print(f"MISS {case.group}, {case.effort or 'off'}: {case.question} | {' '.join(verdict.faults)} | {output}")


if __name__ == "__main__":
    main()
