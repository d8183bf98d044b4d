"""What reading a generated token costs: our parser, events included, and vLLM's own beside it on the same tokens.

    python -m bench.decode [--vocab tiktoken.model] [--tokens 10000,100000,1000000] [--vllm-tokens 10000]

One answer of each length and kind: reasoning, content, a string argument, an argument that is JSON; fed by single tokens and by
four. CPU time of this thread, the best of some rounds. vLLM's parser looks at the whole text at each step, so its cost grows with
the length: it is measured at `--vllm-tokens` only, by default where vLLM is installed. Prints a table, and the same as JSON.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from server.parsers.base import Expected
from server.parsers.factory import ParserFactory
from server.vocabulary.base import Vocabulary
from server.vocabulary.byte import ByteVocabulary
from server.vocabulary.load import load

MOST_US: Final = 3.0
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


def _us_per_token(feed: Callable[[Sequence[int]], Any], token_ids: list[int], size: int) -> float:
    """CPU time of feeding an answer in steps of `size` tokens."""
    steps = [token_ids[start : start + size] for start in range(0, len(token_ids), size)]
    begun_s = time.thread_time()
    for step in steps:
        feed(step)
    return (time.thread_time() - begun_s) * 1e6 / len(token_ids)


def _ours(factory: ParserFactory, kind: str, token_ids: list[int], size: int, rounds: int) -> float:
    expected = Expected(tool_names=("f",), types_of=lambda name: _TYPES, max_calls=1)
    return min(
        _us_per_token(factory.make(thinking=KINDS[kind][0], expected=expected).feed, token_ids, size) for _ in range(rounds)
    )


def _theirs(vocabulary: Vocabulary, kind: str, token_ids: list[int], size: int) -> float:
    from bench.vllm_parser import VllmParser

    return _us_per_token(VllmParser(vocabulary, thinking=KINDS[kind][0]).feed, token_ids, size)


def main() -> None:
    """Run and print. Exit code 1 where a token costs more than is allowed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=Path, help="a merge table; by default every byte is a token")
    parser.add_argument("--tokens", default="10000,100000,1000000")
    parser.add_argument(
        "--vllm-tokens", type=int, default=10_000 if importlib.util.find_spec("vllm") else 0, help="0: leave it out"
    )
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    vocabulary = load(options.vocab) if options.vocab else ByteVocabulary()
    factory = ParserFactory("kimi_k3", vocabulary)
    lengths = [int(length) for length in options.tokens.split(",")]
    print(
        f"µs of CPU a token, best of {options.rounds}; Python {platform.python_version()}, {options.vocab or 'bytes as tokens'}"
    )
    print(f"{'kind':16} {'a feed':>6} " + " ".join(f"{length:>9,}" for length in lengths) + f" {'vLLM':>9} {'ratio':>7}")
    rows: list[dict[str, Any]] = []
    for kind, size in itertools.product(KINDS, FEEDS):
        us = {n: _ours(factory, kind, _answer(vocabulary, kind, n), size, options.rounds) for n in lengths}
        row: dict[str, Any] = {"kind": kind, "tokens_per_feed": size, "us": us, "vllm_us": None, "ratio": None}
        if options.vllm_tokens:
            token_ids = _answer(vocabulary, kind, options.vllm_tokens)
            row["vllm_us"] = _theirs(vocabulary, kind, token_ids, size)
            row["ratio"] = row["vllm_us"] / _ours(factory, kind, token_ids, size, options.rounds)
        rows.append(row)
        beside = f"{row['vllm_us']:9.1f} {row['ratio']:7.0f}" if options.vllm_tokens else f"{'':>9} {'':>7}"
        print(f"{kind:16} {size:6} " + " ".join(f"{us[length]:9.2f}" for length in lengths) + f" {beside}", flush=True)
    print(json.dumps(rows))
    if options.vllm_tokens:
        print(f"vLLM's parser was given {options.vllm_tokens:,} tokens; its cost grows with their number")
    slowest = max(us for row in rows for us in row["us"].values())
    if slowest > MOST_US:
        sys.exit(f"{slowest:.2f} µs a token is more than the {MOST_US} allowed")


if __name__ == "__main__":
    main()
