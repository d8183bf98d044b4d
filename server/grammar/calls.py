"""The tools channel: which calls may come, and with which arguments.

Role: from declared tools to nodes. A tool whose schema can't be held has arguments that are well-formed and no more.
Source: Kimi K3's markup of calls, as `prompts/` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from server.grammar.base import Shape
from server.grammar.characters import ANY, minus, of
from server.grammar.constants import spellable
from server.grammar.containers import Fields, note_uncounted, other_members
from server.grammar.draft import Draft
from server.grammar.keys import Layout, Member, members
from server.grammar.nodes import EMPTY, NOTHING, Literal, Node, Repeat, Word, choice, sequence
from server.grammar.regex import compiled
from server.grammar.schema import Part, Parts
from server.grammar.values import ValueCompiler
from server.vocabulary.utf8 import well_formed

MAX_TOOL_NODES: Final = 12_000
_RAW_NAMES: Final = minus(ANY, of('"&'))
_NUMBER: Final = compiled("^[1-9][0-9]{0,2}$")


class Calls:
    """Compiles the tools of one answer."""

    def __init__(self, draft: Draft, shape: Shape) -> None:
        self._draft = draft
        self._rules = draft.rules
        self._markup = draft.markup
        self._bounds = draft.bounds
        self._shape = shape
        # Each key more doubles the rules: many tools have fewer keys in any order.
        num_tools = len(shape.tools)
        self._any_order = 6 if num_tools <= 16 else 5 if num_tools <= 48 else 4 if num_tools <= 128 else 3
        self._loose: Node | None = None

    def channel(self) -> Node:
        """The whole channel, one call or more. Raises `InvalidRequestError` for a tool that has to be called and can't."""
        call, markup = self._one(), self._markup
        most = self._bounds.calls if self._shape.parallel else 1
        return sequence(*markup.opened("tools"), Repeat(call, 1, most) if most > 1 else call, *markup.closed("tools"))

    def rest(self) -> Node:
        """What of the channel may come behind a call."""
        more = Repeat(self._one(), 0, self._bounds.calls) if self._shape.parallel else EMPTY
        return sequence(more, *self._markup.closed("tools"))

    def _one(self) -> Node:
        """Any call."""
        options: list[Node] = []
        paths = self._shape.tool_paths or [f"tools[{index}]" for index in range(len(self._shape.tools))]
        for path, tool in zip(paths, self._shape.tools, strict=True):
            function = tool["function"]
            if self._shape.named is None or function["name"] == self._shape.named:
                options.append(self._call(function, f"{path}.function"))
        markup = self._markup
        return self._rules.add("call", sequence(markup.open, Literal('call tool="'), choice(options), *markup.closed("call")))

    def _call(self, function: Mapping[str, Any], path: str) -> Node:
        # What tools have in common are rules, equal arguments, too: the compiler's work grows with the text of all rules.
        number = Word(_NUMBER) if self._shape.parallel else Literal("1")
        index = self._rules.add("index", sequence(Literal('" index="'), number, Literal('"'), self._markup.sep))
        return sequence(Literal(attribute(function["name"])), index, self._arguments(function, path))

    def _arguments(self, function: Mapping[str, Any], path: str) -> Node:
        if self._shape.strict_only and function.get("strict") is not True:
            return self._well_formed()
        parameters = function.get("parameters")
        return self._draft.hold(
            Part({} if parameters is None else parameters, f"{path}.parameters"),
            self._objects,
            self._well_formed,
            most_nodes=MAX_TOOL_NODES,
            spaced=True,
            any_order=self._any_order,
        )

    def _objects(self, compiler: ValueCompiler, depth: int | None) -> Node:
        """The arguments of all objects that the compiler's document allows."""
        root = compiler.document.root
        ways = compiler.ways((root,), depth)
        objects = [way for way in ways if way.kind == "object" and way.values is None]
        if len(objects) < len(ways) and not _untyped(root.schema):
            compiler.note(root.path)  # arguments are an object whatever else the schema would take
        if ways and not objects:
            return self._object(compiler, (), depth)
        return choice(self._object(compiler, way.parts, way.depth) for way in objects)

    def _object(self, compiler: ValueCompiler, parts: Parts, depth: int | None) -> Node:
        fields = Fields(parts, compiler.strings, compiler.note, compiler.work)
        given: list[Member] = []
        for key, values in fields.declared.items():
            node: Node = NOTHING
            if values is not None and spellable(key) and (fields.names is None or fields.names.accepts(key)):
                node = self._argument(compiler, Literal(attribute(key)), values, depth)
            if node == NOTHING and key in fields.required:
                compiler.dead.append(fields.path_of(key))
            given.append(Member(key, node, key in fields.required))
        note_uncounted(fields, given, parts, compiler)
        extra = choice(
            self._argument(compiler, Word(names), values, depth if values or depth is None else depth - 1)
            for names, values in other_members(fields, _RAW_NAMES, compiler)
        )
        layout = Layout(sequence(), extra=None if extra == NOTHING else extra, most_extra=self._bounds.extra_keys)
        return compiler.rules.add("args", members(compiler.rules, given, layout, fields.low, fields.high, compiler.any_order))

    def _argument(self, compiler: ValueCompiler, key: Node, values: Parts, depth: int | None) -> Node:
        markup = self._markup
        end = (Literal("argument"), markup.sep)
        typed = choice(
            compiler.rules.add("typed", sequence(Literal(f'" type="{kind}"'), markup.sep, node, *end))
            for kind, node in compiler.arguments(values, depth).items()
        )
        head = compiler.rules.add("head", sequence(markup.open, Literal('argument key="')))
        return compiler.rules.add("arg", sequence(head, key, typed))

    def _well_formed(self) -> Node:
        """Any arguments at all."""
        if self._loose is None:
            compiler = self._draft.compiler(Part({}, ""), _silent, spaced=True, any_order=0)
            depth = self._bounds.depth
            argument = self._argument(compiler, Word(compiler.library.lengths(1, None, _RAW_NAMES)), (), depth)
            self._loose = self._rules.add("loose", Repeat(argument, 0, self._bounds.extra_keys))
        return self._loose


def attribute(text: str) -> str:
    """A value as it stands between the quotes of an attribute, and as text is encoded: without lone surrogates."""
    return well_formed(text).replace("&", "&amp;").replace('"', "&quot;")


def _untyped(schema: Any) -> bool:
    return schema is True or (isinstance(schema, Mapping) and "type" not in schema)


def _silent(path: str) -> None:
    """Nothing is asked for, so nothing is left undone."""
