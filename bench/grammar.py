"""What holding answers to a grammar costs: making it, compiling it, and one mask a token.

    python -m bench.grammar --vocab .cache/demo-model [--vocab DIR/tiktoken.model]

`build`: declared tools to the engine's notation. `parse`: the engine's front end checking it, once a request. `first` and
`again`: the engine compiling it, with nothing and with such grammars compiled before. Masks: filled at each token of an answer
that is written as a model would.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from bench.processes import end_on_sigterm
from server.grammar.base import Shape
from server.grammar.factory import GrammarFactory
from server.vocabulary.base import Vocabulary
from server.vocabulary.load import load

PROSE = "The train leaves Lisbon at 7:42 and arrives in Porto at 10:55; <b>platform 3</b>, coach [4]. "
Argument = tuple[str, str, str]


def tool(name: str, properties: Mapping[str, Any], required: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    """A tool in OpenAI's shape."""
    parameters = {"type": "object", "properties": properties, "required": list(required), **more}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


WEATHER = tool("get_weather", {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}, ["city"])
USUAL = [
    tool(
        f"tool_{number}",
        {
            "query": {"type": "string"},
            f"kind_{number}": {"enum": ["all", "new", "old"]},
            "limit": {"type": "integer", "minimum": 1, "maximum": 100},
            "exact": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        ["query", "limit"],
    )
    for number in range(10)
]
EDITS = tool(
    "edit_file",
    {
        "path": {"type": "string", "minLength": 1},
        "edits": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"old": {"type": "string"}, "new": {"type": "string"}, "count": {"type": "integer"}},
                "required": ["old", "new"],
            },
        },
    },
    ["path", "edits"],
)
STRICT_TEXTS = tool(
    "book",
    {
        "name": {"type": "string", "minLength": 2, "maxLength": 40},
        "mail": {"type": "string", "format": "email"},
        "day": {"type": "string", "format": "date"},
        "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
        "note": {"type": "string", "maxLength": 500},
    },
    ["name", "mail", "day", "code", "note"],
)
TREE = tool(
    "store",
    {"root": {"$ref": "#/$defs/node"}},
    ["root"],
    **{
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"label": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
                "required": ["label"],
            }
        }
    },
)
PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"]}


def _call(name: str, *arguments: Argument) -> list[str]:
    """An answer with one call, control tokens by name."""
    pieces = [
        "<|close|>",
        "response",
        "<|sep|>",
        "<|open|>",
        "tools",
        "<|sep|>",
        "<|open|>",
        f'call tool="{name}" index="1"',
        "<|sep|>",
    ]
    for key, kind, text in arguments:
        pieces += ["<|open|>", f'argument key="{key}" type="{kind}"', "<|sep|>", text, "<|close|>", "argument", "<|sep|>"]
    return [*pieces, "<|close|>", "call", "<|sep|>", "<|close|>", "tools", "<|sep|>"]


def _plain(text: str) -> list[str]:
    return [text, "<|close|>", "response", "<|sep|>"]


_EDIT = '[{"old": "def area(r):\\n    return r * r", "new": "def area(r):\\n    return 3.14 * r * r  # < 4"}]'
CASES: dict[str, tuple[Shape, list[str]]] = {
    "one tool, auto, text": (Shape(tools=[WEATHER]), _plain(PROSE * 3)),
    "one tool, required": (
        Shape(tools=[WEATHER], tool_choice="required"),
        _call("get_weather", ("city", "string", "Lisbon"), ("days", "number", "3")),
    ),
    "10 tools of 5 arguments": (
        Shape(tools=USUAL),
        _call("tool_7", ("limit", "number", "20"), ("query", "string", PROSE), ("tags", "array", '["trains", "Porto"]')),
    ),
    "edits of a file": (Shape(tools=[EDITS]), _call("edit_file", ("path", "string", "src/area.py"), ("edits", "array", _EDIT))),
    "strict texts": (
        Shape(tools=[STRICT_TEXTS]),
        _call(
            "book",
            *(("name", "string", "Ada Lovelace"), ("mail", "string", "ada.l@example.org"), ("day", "string", "2031-02-28")),
            *(("code", "string", "AB-1234"), ("note", "string", PROSE.replace("<", "").replace("[", "") * 2)),
        ),
    ),
    "a recursive schema": (
        Shape(tools=[TREE]),
        _call("store", ("root", "object", '{"label": "a", "children": [{"label": "b"}, {"label": "c", "children": []}]}')),
    ),
    "500 tools": (
        Shape(
            tools=[tool(f"tool_{number}", {"query": {"type": "string"}, "limit": {"type": "integer"}}) for number in range(500)]
        ),
        _call("tool_321", ("query", "string", "trains")),
    ),
    "json_object": (
        Shape(response_format={"type": "json_object"}),
        _plain('{"text":"' + PROSE + '","list":[1,2.5,true,null,"x"],"more":{"a":{}}}'),
    ),
    "json_schema": (
        Shape(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": PERSON}}),
        _plain('{"name":"Ada Lovelace","age":36}'),
    ),
}


class Bench:
    """The engine's compiler over one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        import xgrammar

        self._xgrammar = xgrammar
        self._vocabulary = vocabulary
        self._end = vocabulary.control["<|end_of_msg|>"]
        self._info = xgrammar.TokenizerInfo(
            list(vocabulary.pieces), vocab_type=xgrammar.VocabType.RAW, vocab_size=vocabulary.size, stop_token_ids=[self._end]
        )
        self._warm = self._compiler()

    def row(self, shape: Shape, answer: Sequence[str], rounds: int) -> list[float]:
        """Milliseconds to build, parse, compile first and again; microseconds of a mask, median, 95th of 100, and worst."""
        build, grammar = min(
            (self._timed(lambda: GrammarFactory("kimi_k3", self._vocabulary).make(shape)) for _ in range(3)),
            key=lambda pair: pair[0],
        )
        tag = grammar.structural_tag
        parse, _ = self._timed(lambda: self._xgrammar.Grammar.from_structural_tag(tag))
        first, compiled = min(
            (self._timed(lambda: self._compiler().compile_structural_tag(tag)) for _ in range(rounds)), key=lambda pair: pair[0]
        )
        self._warm.compile_structural_tag(tag)
        again = min(self._again(tag.replace("response", f"response{number}")) for number in range(rounds))
        fills = sorted(min(times) for times in zip(*(self._masks(compiled, answer) for _ in range(rounds)), strict=True))
        return [
            *(value * 1e3 for value in (build, parse, first, again)),
            *(value * 1e6 for value in (median(fills), fills[int(len(fills) * 0.95)], fills[-1])),
        ]

    def _again(self, tag: str) -> float:
        """Seconds to compile another grammar with the same parts."""
        return self._timed(lambda: self._warm.compile_structural_tag(tag))[0]

    def _masks(self, compiled: Any, answer: Sequence[str]) -> list[float]:
        matcher = self._xgrammar.GrammarMatcher(compiled, override_stop_tokens=[self._end])
        mask = self._xgrammar.allocate_token_bitmask(1, self._vocabulary.size)
        times: list[float] = []
        for token_id in self._written([*answer, "<|close|>", "message", "<|sep|>", "<|end_of_msg|>"]):
            begin = time.perf_counter()
            matcher.fill_next_token_bitmask(mask, 0)
            times.append(time.perf_counter() - begin)
            if not matcher.accept_token(token_id):
                raise RuntimeError(f"the grammar refuses token `{token_id}`, number {len(times)}, of `{''.join(answer)}`")
        return times

    def _written(self, pieces: Sequence[str]) -> list[int]:
        control = self._vocabulary.control
        return [
            token_id
            for piece in pieces
            for token_id in ([control[piece]] if piece in control else self._vocabulary.encode(piece))
        ]

    def _compiler(self) -> Any:
        return self._xgrammar.GrammarCompiler(self._info, max_threads=8)

    def _timed(self, work: Callable[[], Any]) -> tuple[float, Any]:
        begin = time.perf_counter()
        result = work()
        return time.perf_counter() - begin, result


def main() -> None:
    """Run and print."""
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=Path, action="append", required=True, help="a model's folder or its tokeniser's file")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for path in options.vocab:
        vocabulary = load(path)
        bench = Bench(vocabulary)
        print(f"{path}: {vocabulary.size} tokens; xgrammar {version('xgrammar')}, Python {platform.python_version()}")
        print(f"{'':26}{'build':>8}{'parse':>8}{'first':>8}{'again':>8} ms{'mask':>8}{'95 %':>8}{'worst':>8} us")
        for name, (shape, answer) in CASES.items():
            build, parse, first, again, middle, most, worst = bench.row(shape, answer, options.rounds)
            print(f"{name:26}{build:8.1f}{parse:8.1f}{first:8.1f}{again:8.1f}   {middle:8.1f}{most:8.1f}{worst:8.1f}", flush=True)


if __name__ == "__main__":
    main()
