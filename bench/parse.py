"""What reading a generated token costs: our parser, events included, and vLLM's own beside it on the same tokens.

    python -m bench parse [--vocab DIR] [--tokens 1000,10000,100000,1000000] [--vllm-seconds 5] [--json FILE]

One answer of each length and kind: reasoning, content, a string argument, an argument that is JSON; fed by single tokens and by
four, to both in turn. CPU time of this thread; of ours the median of some rounds. vLLM's parser looks at the whole text at each
step, so its cost of a token grows with the answer: one that has taken `--vllm-seconds` is fed no further, and its figure stands
for the tokens it was given by then (`>=`). Exit code 1 where a token of ours costs more than is allowed.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Final

from bench.options import existing, positive, positives
from bench.processes import ROOT, end_on_sigterm
from bench.report import Report, add_json_option, ratio
from server.parsers.base import Expected
from server.parsers.factory import ParserFactory
from server.vocabulary.base import Vocabulary
from server.vocabulary.byte import ByteVocabulary
from server.vocabulary.load import load

MOST_US: Final = 3.0
DEMO_MODEL: Final = ROOT / ".cache/demo-model"
COLUMNS: Final = {"kind": "", "a feed": "d", "tokens": ",d", "ours µs": ".2f", "vLLM µs": ".1f", "ratio": ".1f"}
FEEDS: Final = (1, 4)
_PROSE: Final = 'The quick brown fox said "no": it costs 12.50 in 北京, naïve or not.\n'
_JSON: Final = '{"name": "fox", "tags": ["a", "b"], "price": 12.5, "in stock": true, "note": "naïve, 北京"}, '
_CALL: Final = ("close response", "open tools", 'open call tool="f" index="1"')
_TYPES: Final[Mapping[str, frozenset[str]]] = {"text": frozenset({"string"}), "data": frozenset({"array"})}
# Whether the answer begins inside think; the markers before the text; the text that is repeated, and what stands before it.
KINDS: Final[Mapping[str, tuple[bool, tuple[str, ...], str, str]]] = {
    "reasoning": (True, (), _PROSE, ""),
    "content": (False, (), _PROSE, ""),
    "string argument": (False, (*_CALL, 'open argument key="text" type="string"'), _PROSE, ""),
    "JSON argument": (False, (*_CALL, 'open argument key="data" type="array"'), _JSON, "["),
}


def _answer(vocabulary: Vocabulary, kind: str, num_tokens: int) -> list[int]:
    """Token ids of an answer of `kind` whose text has `num_tokens` tokens. It is not closed: what is measured is the text."""
    _, markers, text, start = KINDS[kind]
    control = vocabulary.control
    token_ids: list[int] = []
    for marker in markers:
        verb, header = marker.split(" ", 1)
        token_ids += [control[f"<|{verb}|>"], *vocabulary.encode(header), control["<|sep|>"]]
    body = itertools.chain(vocabulary.encode(start), itertools.cycle(vocabulary.encode(text)))
    return [*token_ids, *itertools.islice(body, num_tokens)]


def _us_per_token(
    feed: Callable[[Sequence[int]], Any], token_ids: list[int], size: int, most_s: float = float("inf")
) -> tuple[float, bool]:
    """CPU time of a token, of an answer in steps of `size` tokens; and whether `most_s` sufficed for all of it."""
    steps = [token_ids[start : start + size] for start in range(0, len(token_ids), size)]
    begun_s = time.thread_time()
    until_s = begun_s + most_s
    for number, step in enumerate(steps, start=1):
        feed(step)
        if not number % 256 and time.thread_time() > until_s and number < len(steps):
            return (time.thread_time() - begun_s) * 1e6 / (number * size), False
    return (time.thread_time() - begun_s) * 1e6 / len(token_ids), True


def _ours(factory: ParserFactory, kind: str, token_ids: list[int], size: int, rounds: int) -> float:
    expected = Expected(tool_names=("f",), types_of=lambda name: _TYPES, max_calls=1)
    return median(
        _us_per_token(factory.make(thinking=KINDS[kind][0], expected=expected).feed, token_ids, size)[0] for _ in range(rounds)
    )


def _theirs(vocabulary: Vocabulary, kind: str, token_ids: list[int], size: int, most_s: float) -> tuple[float, bool]:
    from bench.vllm_parser import VllmParser

    return _us_per_token(VllmParser(vocabulary, thinking=KINDS[kind][0]).feed, token_ids, size, most_s)


def _rows(vocabulary: Vocabulary, lengths: Sequence[int], rounds: int, vllm_s: float) -> list[dict[str, Any]]:
    """All figures. An answer that vLLM did not come to the end of is the last that it is given of its kind."""
    factory, rows = ParserFactory("kimi_k3", vocabulary), []
    for kind, size in itertools.product(KINDS, FEEDS):
        known, is_whole = None, vllm_s > 0
        for length in lengths:
            token_ids = _answer(vocabulary, kind, length)
            ours = _ours(factory, kind, token_ids, size, rounds)
            if is_whole:
                known, is_whole = _theirs(vocabulary, kind, token_ids, size, vllm_s)
            row: dict[str, Any] = {"kind": kind, "a feed": size, "tokens": length, "ours µs": ours, "vLLM µs": known}
            rows.append({**row, "ratio": ratio(known, ours), "vLLM whole": is_whole})
    return rows


def _growth(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of each kind, what a token of the longest answer costs by what one of the shortest does."""
    grown = []
    for (kind, size), of in itertools.groupby(rows, key=lambda row: (row["kind"], row["a feed"])):
        lengths = list(of)
        first, last = lengths[0], lengths[-1]
        growth = last["ours µs"] / first["ours µs"]
        grown.append({"kind": kind, "a feed": size, "from": first["tokens"], "to": last["tokens"], "ours": growth})
    return grown


def _marked(row: Mapping[str, Any]) -> dict[str, Any]:
    if row["vLLM µs"] is None or row["vLLM whole"]:
        return dict(row)
    return {**row, "vLLM µs": f">= {row['vLLM µs']:.1f}", "ratio": f">= {row['ratio']:.1f}"}


def main(arguments: list[str] | None = None) -> None:
    """Run and print."""
    end_on_sigterm()
    parser = argparse.ArgumentParser("bench parse", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = DEMO_MODEL if (DEMO_MODEL / "config.json").is_file() else None
    parser.add_argument("--vocab", type=existing, default=known, help="a model's folder; else every byte is a token")
    parser.add_argument("--tokens", type=positives, default="1000,10000,100000,1000000")
    parser.add_argument("--vllm-seconds", type=float, default=5.0, help="for each answer; 0 leaves vLLM out")
    parser.add_argument("--rounds", type=positive, default=3)
    add_json_option(parser)
    options = parser.parse_args(arguments)
    report = Report("parse", {key: str(value) for key, value in vars(options).items()})
    report.head()
    if not importlib.util.find_spec("vllm"):
        report.note("not measured: vLLM's parser: it is not installed")
        options.vllm_seconds = 0.0
    vocabulary = load(options.vocab) if options.vocab else ByteVocabulary()
    rows = _rows(vocabulary, [int(length) for length in options.tokens.split(",")], options.rounds, options.vllm_seconds)
    report.table("tokens", "µs of CPU a token, by kind, tokens a feed and length", COLUMNS, [_marked(row) for row in rows])
    columns = {"kind": "", "a feed": "d", "from": ",d", "to": ",d", "ours": ".2f"}
    report.table("growth", "Cost of a token in the longest answer by that in the shortest", columns, _growth(rows))
    report.write(options.json)
    slowest = max(row["ours µs"] for row in rows)
    if slowest > MOST_US:
        sys.exit(f"{slowest:.2f} µs a token is more than the {MOST_US} allowed")


if __name__ == "__main__":
    main()
