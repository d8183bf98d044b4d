"""The grammar of one answer, from its first token to the end of the message.

    reasoning </think> <response> text or JSON </response> [<tools> calls </tools>] </message>

Role: puts the channels of a shape together. A model can't skip one, leave one open, or end within one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from server.errors import InvalidRequestError
from server.grammar.automaton import TooLargeError
from server.grammar.base import Bounds, Shape
from server.grammar.calls import MAX_DEEPER, Calls
from server.grammar.derivation import ENDLESS, Lengths
from server.grammar.markup import Markup
from server.grammar.nodes import EMPTY, FreeText, Node, Rules, choice, sequence
from server.grammar.schema import Document, Part
from server.grammar.values import ValueCompiler
from server.quoting import shown

MAX_NODES: Final = 120_000
MAX_RESPONSE_NODES: Final = 40_000


@dataclass(frozen=True, slots=True)
class Answer:
    """A grammar as nodes. `root` refers to `rules`; `unenforced`: see `Grammar`."""

    root: Node
    rules: Mapping[str, Node]
    unenforced: tuple[str, ...]


def compiled(shape: Shape, markup: Markup, bounds: Bounds) -> Answer | None:
    """The grammar of `shape`, None where it asks for nothing.

    Raises `InvalidRequestError` where no answer is possible.
    """
    unenforced: list[str] = []
    rules = Rules(MAX_NODES)
    forced = shape.tool_choice == "required" or shape.named is not None
    calls = shape.tool_choice != "none" and bool(shape.tools)
    schema = None if forced and calls else response_schema(shape.response_format)
    if not shape.tools and schema is None:
        return None
    text = sequence(FreeText(0, bounds.text_tokens), *markup.closed("response"))
    value = text if schema is None else sequence(_json(schema, rules, markup, bounds, unenforced), *markup.closed("response"))
    if not calls:
        body = value
    elif shape.after_calls:
        body = Calls(rules, markup, bounds, shape, unenforced).rest()
    else:
        tools = Calls(rules, markup, bounds, shape, unenforced).channel()
        if forced:
            body = sequence(text, tools)
        elif schema is None:
            body = sequence(text, choice([tools, EMPTY]))
        else:
            body = choice([value, sequence(text, tools)])
    start: tuple[Node, ...] = ()
    if shape.thinking:
        start = (FreeText(0, bounds.think_tokens), *markup.closed("think"), *markup.opened("response"))
    root = sequence(*start, rules.add("body", body), *markup.closed("message"))
    return Answer(root, rules.nodes, tuple(dict.fromkeys(unenforced)))


def response_schema(response_format: Mapping[str, Any] | None) -> Part | None:
    """The schema that the response is to satisfy, None where it is text."""
    kind = (response_format or {}).get("type")
    if kind == "json_object":
        return Part({"type": "object"}, "response_format")
    if kind != "json_schema" or response_format is None:
        return None
    path = "response_format.json_schema"
    schema = response_format.get("json_schema")
    if isinstance(schema, Mapping):
        for key in ("schema", "json_schema"):
            if key in schema:
                return Part(schema[key], f"{path}.{key}")
    return Part(schema, path)


def _json(root: Part, rules: Rules, markup: Markup, bounds: Bounds, unenforced: list[str]) -> Node:
    """Any value of a schema as compact JSON; any object where the schema takes too much room."""
    notes: list[str] = []
    try:
        node = _held(root, rules, markup, bounds, notes)
    except (TooLargeError, RecursionError):
        notes = [root.path]
        node = _held(Part({}, root.path), rules, markup, bounds, [])
    unenforced.extend(notes)
    return node


def _held(root: Part, rules: Rules, markup: Markup, bounds: Bounds, notes: list[str]) -> Node:
    for deeper in range(MAX_DEEPER if bounds.depth is not None else 1):
        mine = Rules(MAX_RESPONSE_NODES)
        notes.clear()
        document = Document(root, notes.append)
        compiler = ValueCompiler(mine, document, bounds, markup.guard, markup.close, spaced=False, any_order=None)
        depth = None if bounds.depth is None else bounds.depth + deeper
        node = compiler.json((root,), depth, inside=False)
        found = Lengths(mine.nodes)
        if found.of(node) < ENDLESS:
            return rules.take(mine, found.pruned(), node)
    path = found.blame(node, mine.paths) or next(iter(compiler.dead), root.path)
    raise InvalidRequestError(f"no value satisfies `{shown(path)}`: change the schema", param=path)
