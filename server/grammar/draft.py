"""A grammar in the making: its rules, and what is known of all of them.

Role: shared by the compilers of the channels. A schema is compiled here as often as it takes: with more recursion where a small
model's bound leaves no finite value, and not at all where it would take too much room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from server.errors import InvalidRequestError
from server.grammar.automaton import TooLargeError
from server.grammar.base import Bounds
from server.grammar.budget import MAX_PART_WORK, MAX_WORK, Budget, SpentError
from server.grammar.derivation import ENDLESS, Lengths
from server.grammar.library import Library
from server.grammar.markup import Markup
from server.grammar.nodes import Node, Rules
from server.grammar.roots import root_part
from server.grammar.schema import Document, Part, objects_in
from server.grammar.values import ValueCompiler
from server.quoting import shown

MAX_NODES: Final = 36_000
"""Some 250 tools of four arguments each, which the engine compiles in a second; more take the square of it."""

_MAX_DEEPER: Final = 8
_WORK_OF_PART: Final = 20
_WORK_OF_SCHEMA: Final = 8

Build = Callable[[ValueCompiler, int | None], Node]
"""Makes something of a schema, given the levels of recursion that it may use."""


class Draft:
    """One grammar. `unenforced`: see `Grammar`."""

    def __init__(self, markup: Markup, bounds: Bounds, library: Library) -> None:
        self.markup = markup
        self.bounds = bounds
        self._room = Budget(MAX_NODES)
        self._work = Budget(MAX_WORK)
        self.rules = Rules(self._room)
        self.lengths = Lengths(self.rules.nodes)
        self.unenforced: list[str] = []
        self._library = library
        library.begin(self._work)

    def compiler(self, root: Part, note: Callable[[str], None], *, spaced: bool, any_order: int | None) -> ValueCompiler:
        """A compiler for one schema; the arguments are `ValueCompiler`'s."""
        document = Document(root, note, self._work)
        return ValueCompiler(
            self.rules, document, self.bounds, self._library, self.markup.close, spaced=spaced, any_order=any_order
        )

    def hold(
        self, root: Part, build: Build, otherwise: Callable[[], Node], *, most_nodes: int, spaced: bool, any_order: int | None
    ) -> Node:
        """What `build` makes of the schema `root`, which is the compiler's document then, or `otherwise` where that is too large.

        Raises `InvalidRequestError` where no value satisfies the schema.
        """
        try:
            self._work.allow(MAX_PART_WORK)
            root = self._read(root)
            for deeper in range(1 if self.bounds.depth is None else _MAX_DEEPER):
                notes: list[str] = []
                compiler = self.compiler(root, notes.append, spaced=spaced, any_order=any_order)
                self._room.allow(most_nodes)
                node = build(compiler, None if self.bounds.depth is None else self.bounds.depth + deeper)
                self.lengths.update()
                if self.lengths.of(node) < ENDLESS:
                    self.unenforced += notes
                    return node
        except (TooLargeError, SpentError, RecursionError):
            self.unenforced.append(root.path)
            self._lift_limits()
            return otherwise()
        finally:
            self._lift_limits()
        path = self.lengths.blame(node, self.rules.paths) or next(iter(compiler.dead), root.path)
        raise InvalidRequestError(
            f"no value satisfies `{shown(path)}`: change the schema, or leave the key out of `required`", param=path
        )

    def _read(self, root: Part) -> Part:
        self._work.spend(_WORK_OF_PART)
        for _ in objects_in(root.schema):
            self._work.spend(_WORK_OF_SCHEMA)
        return root_part(root.schema, root.path)

    def _lift_limits(self) -> None:
        self._room.allow(None)
        self._work.allow(None)
