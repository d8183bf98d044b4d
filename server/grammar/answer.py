"""The grammar of one answer, from its first token to the end of the message.

    reasoning </think> <response> text or JSON </response> [<tools> calls </tools>] </message>

Role: puts the channels of a shape together. A model can't skip one, leave one open, or end within one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from server.grammar.base import Bounds, Shape
from server.grammar.calls import Calls
from server.grammar.derivation import Lengths
from server.grammar.draft import Draft
from server.grammar.library import Library
from server.grammar.markup import Markup
from server.grammar.nodes import EMPTY, FreeText, Node, choice, sequence
from server.grammar.schema import Part

MAX_RESPONSE_NODES: Final = 24_000


@dataclass(frozen=True, slots=True)
class Answer:
    """A grammar as nodes. `root` refers to `rules`, `lengths` knows them; `unenforced`: see `Grammar`."""

    root: Node
    rules: Mapping[str, Node]
    lengths: Lengths
    unenforced: tuple[str, ...]


def compiled(shape: Shape, markup: Markup, bounds: Bounds, library: Library) -> Answer | None:
    """The grammar of `shape`, None where it asks for nothing.

    Raises `InvalidRequestError` where no answer is possible.
    """
    draft = Draft(markup, bounds, library)
    forced = shape.tool_choice == "required" or shape.named is not None
    calls = shape.tool_choice != "none" and bool(shape.tools)
    schema = None if forced and calls else response_schema(shape.response_format)
    if not shape.tools and schema is None:
        return None
    text = sequence(FreeText(0, bounds.text_tokens), *markup.closed("response"))
    value = text if schema is None else sequence(_json(draft, schema), *markup.closed("response"))
    if not calls:
        body = value
    elif shape.after_calls:
        body = Calls(draft, shape).rest()
    else:
        tools = Calls(draft, shape).channel()
        if forced:
            body = sequence(text, tools)
        elif schema is None:
            body = sequence(text, choice([tools, EMPTY]))
        else:
            # No text before calls where a form is demanded: it would be an answer that has none.
            body = choice([value, sequence(*markup.closed("response"), tools)])
    start: tuple[Node, ...] = ()
    if shape.thinking:
        start = (FreeText(0, bounds.think_tokens), *markup.closed("think"), *markup.opened("response"))
    root = sequence(*start, draft.rules.add("body", body), *markup.closed("message"))
    draft.lengths.update()
    draft.lengths.prune()
    return Answer(root, draft.rules.nodes, draft.lengths, tuple(dict.fromkeys(draft.unenforced)))


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


def _json(draft: Draft, root: Part) -> Node:
    """Any value of a schema as compact JSON, in which keys come as they are declared."""
    anything = draft.compiler(Part({}, root.path), lambda path: None, spaced=False, any_order=None)
    return draft.hold(
        root,
        lambda compiler, depth: compiler.json((compiler.document.root,), depth, inside=False),
        lambda: anything.json((), draft.bounds.depth, inside=False),
        most_nodes=MAX_RESPONSE_NODES,
        spaced=False,
        any_order=None,
    )
