"""One schema as a document: every schema inside it with its path, and where its references lead.

Role: the walk that the other modules build on. Invariant: references lead to places in the document or nowhere; nothing is
fetched. Work and depth are bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urljoin

from server.quoting import cut, shown
from server.schemas.keywords import NEWEST_DRAFT, Step, draft_of, fault_of, inner_schemas, is_schema, stands_alone

MAX_DEPTH: Final = 64
"""Schemas inside schemas."""

_OLD_DRAFTS: Final = (7, 4)
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")


class SchemaFault(Exception):
    """A schema is not well-formed: `path` inside it, and what is wrong there."""

    def __init__(self, path: tuple[Step, ...], words: str) -> None:
        super().__init__(words)
        self.path = path
        self.words = words


@dataclass(slots=True)
class Document:
    """A schema that has been walked. `nodes`: every schema in it but true and false, parents first.

    Keeps no paths: of a large schema they would be more than the schema itself, and only a mistake needs one.
    """

    root: Mapping[str, Any] | bool
    draft: int
    nodes: list[Mapping[str, Any]] = field(default_factory=list)
    _roots: list[tuple[tuple[Step, ...], Any]] = field(default_factory=list)  # where walks began
    _bases: dict[int, str] = field(default_factory=dict)  # by id of the node, where it is not the empty one
    _named: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # resources by URI, anchors by URI and fragment
    _seen: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, schema: Mapping[str, Any] | bool) -> Document:
        """Walks all of `schema`. Raises `SchemaFault`.

        The draft is that of `$schema`. Without it, it is 2020-12, or where the schema is not well-formed in that, draft 7 or else
        4, whose spellings generators still write; what none of them takes has the fault that it has in 2020-12.
        """
        try:
            # Where the draft is unknown, the walk says so at `$schema`.
            return cls._read(schema, draft_of(schema) or NEWEST_DRAFT)
        except SchemaFault:
            for draft in _OLD_DRAFTS if isinstance(schema, dict) and "$schema" not in schema else ():
                with suppress(SchemaFault):
                    return cls._read(schema, draft)
            raise

    @classmethod
    def _read(cls, schema: Mapping[str, Any] | bool, draft: int) -> Document:
        document = cls(schema, draft)
        document._walk((), schema, "")
        document._follow()
        document._seen.clear()
        return document

    def path_of(self, node: Mapping[str, Any]) -> tuple[Step, ...]:
        """Where `node` is. Takes a walk."""
        return next(found for path, root in self._roots if (found := _find(root, node, path)) is not None)

    def target(self, node: Mapping[str, Any], reference: str) -> Any:
        """The schema that `reference` in `node` leads to. Raises `LookupError` with the reason."""
        base = self._bases.get(id(node), "")
        uri, _, fragment = reference.partition("#")
        resource = _joined(base, uri)
        holder: Any = self._named.get(resource) if resource else self.root
        if holder is None:
            raise LookupError("there is no such schema in the document, and nothing is fetched; put it under `$defs`")
        if fragment and not fragment.startswith("/"):
            if (anchored := self._named.get(f"{resource}#{fragment}")) is None:
                raise LookupError(f"nothing has the anchor `{shown(fragment)}`")
            return anchored
        for piece in _pieces(fragment):
            holder = _step(holder, piece)
        return holder

    def targets(self, node: Mapping[str, Any]) -> list[Any]:
        """Where the references of a node of the document lead; there is seldom more than one."""
        return [self.target(node, node[key]) for key in _REFERENCES if isinstance(node.get(key), str)]

    def _walk(self, path: tuple[Step, ...], schema: Any, base: str) -> None:
        """Depth first, without recursion; what has been walked is left out."""
        self._roots.append((path, schema))
        levels = [_Level(iter([(path, schema)]), base)]
        while levels:
            level = levels[-1]
            level.steps, node = next(level.inner, ((), None))
            if node is None:
                levels.pop()
            elif isinstance(node, dict) and id(node) not in self._seen:
                if len(levels) > MAX_DEPTH + 1:
                    raise SchemaFault(_path(levels), f"nested in {MAX_DEPTH} schemas; use fewer levels, or `$ref`")
                if fault := fault_of(node, self.draft):
                    raise SchemaFault((*_path(levels), *fault[0]), fault[1])
                self._seen.add(id(node))
                self.nodes.append(node)
                base = self._name(node, level.base)
                if base:
                    self._bases[id(node)] = base
                levels.append(_Level(inner_schemas(node), base))

    def _name(self, node: Mapping[str, Any], base: str) -> str:
        """Remember what `node` is called; returns the base of the references in it."""
        name = node.get("id" if self.draft == 4 else "$id")
        if isinstance(name, str) and name and not stands_alone(node, self.draft):
            uri, _, fragment = name.partition("#")
            if uri:
                base = _joined(base, uri)
                self._named[base] = node
            if fragment:
                self._named[f"{base}#{fragment}"] = node
        for key in ("$anchor", "$dynamicAnchor"):
            if key in node:
                self._named[f"{base}#{node[key]}"] = node
        return base

    def _follow(self) -> None:
        """Check every reference; walk what only they lead to, as in `components` of OpenAPI."""
        index = 0
        while index < len(self.nodes):
            node = self.nodes[index]
            index += 1
            for key in _REFERENCES:
                if not isinstance(reference := node.get(key), str):
                    continue
                try:
                    target = self.target(node, reference)
                except LookupError as error:
                    where = (*self.path_of(node), key)
                    raise SchemaFault(where, f"`{shown(reference)}`: {error.args[0]}") from None
                if not is_schema(target):
                    raise SchemaFault(
                        (*self.path_of(node), key), f"`{shown(reference)}`, which is no schema but `{shown(target)}`"
                    )
                if id(target) not in self._seen:
                    self._walk(tuple(_pieces(reference.partition("#")[2])), target, self._bases.get(id(node), ""))


@dataclass(slots=True)
class _Level:
    """One level of a walk. `steps`: to the schema that the walk is in, from the level above."""

    inner: Iterator[tuple[tuple[Step, ...], Any]]
    base: str
    steps: tuple[Step, ...] = ()


def _path(levels: Iterable[_Level]) -> tuple[Step, ...]:
    return tuple(step for level in levels for step in level.steps)


def _find(schema: Any, node: Mapping[str, Any], path: tuple[Step, ...]) -> tuple[Step, ...] | None:
    """The path of `node` in `schema`, which is at `path` itself."""
    if schema is node:
        return path
    inner = inner_schemas(schema) if isinstance(schema, dict) else ()
    return next((found for steps, child in inner if (found := _find(child, node, (*path, *steps))) is not None), None)


def _joined(base: str, uri: str) -> str:
    try:
        return urljoin(base, uri) if uri else base
    except ValueError:  # no URI at all; then it is a name like any other
        return uri


def _pieces(pointer: str) -> list[str]:
    """The keys in a JSON pointer, `/$defs/a`."""
    return [piece.replace("~1", "/").replace("~0", "~") for piece in unquote(pointer).split("/")[1:]]


def _step(holder: Any, piece: str) -> Any:
    if isinstance(holder, dict) and piece in holder:
        return holder[piece]
    if isinstance(holder, list) and piece.isascii() and piece.isdigit() and int(piece[:9]) < len(holder):
        return holder[int(piece[:9])]
    raise LookupError(f"there is nothing at `{shown(piece)}`")


def written(param: str, path: tuple[Step, ...]) -> str:
    """`path` below `param` as clients know paths: `tools[0].function.parameters.properties.a`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{cut(step)}" for step in path)
    return param + "".join(steps)
