"""Reading JSON Schema: references, combinations and types, down to schemas that hold all at once.

Role: `values` is given conjunctions of flat schemas of one type; everything that combines schemas ends here.
Invariant: what comes out allows no value that the schema forbids, but for what is noted as unenforced. Malformed keywords are
read as if they were not there, and noted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from server.grammar.automaton import TooLargeError
from server.grammar.budget import Budget
from server.grammar.exclusion import are_apart, mark_of, size_of_mark

KINDS: Final = ("string", "number", "integer", "boolean", "null", "object", "array")
MAX_BRANCHES: Final = 64
_MAX_PARTS: Final = 64
_MAX_REFERENCES: Final = 1000
"""Different ones in a schema; where each leads is looked at for each."""

_NEVER: Final = (
    *("not", "if", "dependentRequired", "dependentSchemas", "dependencies", "uniqueItems", "contains", "unevaluatedItems"),
    *("unevaluatedProperties", "$dynamicRef", "$recursiveRef"),
)
_IMPLIED: Final = {
    "object": (
        *("properties", "required", "additionalProperties", "patternProperties"),
        *("propertyNames", "minProperties", "maxProperties"),
    ),
    "array": ("items", "prefixItems", "minItems", "maxItems", "contains", "uniqueItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}


class Part(NamedTuple):
    """A schema and where in the request it stands."""

    schema: Any
    path: str

    def below(self, *keys: str | int) -> str:
        """The path of something in it."""
        return self.path + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)


Parts = tuple[Part, ...]
"""Schemas that must all hold; none: anything does."""


class Branch(NamedTuple):
    """One way to satisfy a conjunction. `recursive`: a reference that leads back to itself was followed."""

    parts: Parts
    recursive: bool


class Document:
    """One schema with all that it refers to."""

    def __init__(self, root: Part, note: Callable[[str], None], work: Budget) -> None:
        """`note` is told the path of each thing that won't be enforced. `work`: what may be spent on reading it."""
        self.root = root
        self.note = note
        self.work = work
        self._recursive: dict[str, bool] = {}
        self._inner: dict[int, frozenset[str]] = {}  # references in a schema, by its id
        self._elsewhere = _inner_references(root.schema)

    def branches(self, parts: Parts) -> list[Branch]:
        """The flat conjunctions whose union is `parts`. Raises `TooLargeError`."""
        done: list[Branch] = []
        queue: list[tuple[list[Part], list[Part], frozenset[int], bool]] = [(list(parts), [], frozenset(), False)]
        while queue:
            todo, flat, seen, recursive = queue.pop()
            self.work.spend(5 + len(todo) // 8)
            if not todo:
                done.append(Branch(tuple(flat), recursive))
                continue
            part = todo.pop()
            schema = part.schema
            if schema is False:
                continue
            if not isinstance(schema, Mapping):
                if schema is not True:
                    self.note(part.path)
                queue.append((todo, flat, seen, recursive))
                continue
            if id(schema) in seen:
                queue.append((todo, flat, seen, recursive))
                continue
            if len(seen) >= _MAX_PARTS or len(done) + len(queue) >= MAX_BRANCHES:
                raise TooLargeError("a combination of schemas")
            seen = seen | {id(schema)}
            more, turned = self._conjuncts(part)
            groups = [[*more, *todo]]
            for key in ("anyOf", "oneOf"):
                if (options := schema.get(key)) is not None:
                    groups = self._distributed(part, key, options, groups)
            for group in reversed(groups):
                queue.append((group, [*flat, part], seen, recursive or turned))
        return done

    def kinds(self, parts: Parts) -> list[str]:
        """The types that a flat conjunction allows, `integer` only where `number` is not. Notes what no type enforces."""
        allowed = set(KINDS)
        typed = False
        for part in parts:
            for key in _NEVER:
                if part.schema.get(key) not in (None, False, {}):
                    self.note(part.below(key))
            kind = part.schema.get("type")
            if kind is None:
                continue
            names = [kind] if isinstance(kind, str) else kind if isinstance(kind, list) else []
            known = {name for name in names if name in KINDS}
            if not known:
                self.note(part.below("type"))
                continue
            typed = True
            allowed &= known | ({"integer"} if "number" in known else set())
        if not typed and not any("enum" in part.schema or "const" in part.schema for part in parts):
            implied = {kind for kind, keys in _IMPLIED.items() if any(key in part.schema for part in parts for key in keys)}
            allowed &= implied | ({"integer"} if "number" in implied else set()) or allowed
        if "number" in allowed:
            allowed.discard("integer")
        return [kind for kind in KINDS if kind in allowed]

    def resolved(self, reference: str) -> Part | None:
        """The schema that a reference inside of the document names."""
        if reference in self._elsewhere:
            return None
        if reference in ("", "#"):
            return self.root
        if not reference.startswith("#"):
            return None
        if not reference.startswith("#/"):
            named = self._named.get(reference)
            return None if named is None else Part(named, self.root.path)
        node: Any = self.root.schema
        path = self.root.path
        self.work.spend(len(reference) // 4)
        for key in reference[2:].split("/"):
            name = _unescaped(key)
            if isinstance(node, Mapping) and name in node:
                node = node[name]
                path += f".{name}"
            elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
                node = node[int(name)]
                path += f"[{name}]"
            else:
                return None
        return Part(node, path)

    @cached_property
    def _named(self) -> Mapping[str, Mapping[str, Any]]:
        """Reference by name -> the first schema that has the name."""
        named: dict[str, Mapping[str, Any]] = {}
        for schema in objects_in(self.root.schema):
            for key, mark in (("$anchor", "#"), ("$id", "")):
                if isinstance(name := schema.get(key), str):
                    named.setdefault(mark + name, schema)
        return named

    def _conjuncts(self, part: Part) -> tuple[list[Part], bool]:
        """The schemas that `part` demands beside its own keywords, and whether a recursive reference is among them."""
        more: list[Part] = []
        recursive = False
        reference = part.schema.get("$ref")
        if reference is not None:
            target = self.resolved(reference) if isinstance(reference, str) else None
            if target is None:
                self.note(part.below("$ref"))
            else:
                more.append(target)
                recursive = self._is_recursive(reference)
        everything = part.schema.get("allOf")
        if isinstance(everything, list):
            more += [Part(schema, part.below("allOf", index)) for index, schema in enumerate(everything)]
        elif everything is not None:
            self.note(part.below("allOf"))
        return more, recursive

    def _distributed(self, part: Part, key: str, options: Any, groups: list[list[Part]]) -> list[list[Part]]:
        if not isinstance(options, list) or not options:
            self.note(part.below(key))
            return groups
        if len(options) * len(groups) > MAX_BRANCHES:
            raise TooLargeError("a combination of schemas")
        self.work.spend(2 * len(options) * len(groups))
        if key == "oneOf" and len(options) > 1 and not self._exclusive(options, part.schema.get("type")):
            self.note(part.below(key))
        return [[Part(option, part.below(key, index)), *group] for group in groups for index, option in enumerate(options)]

    def _exclusive(self, options: Sequence[Any], outer: Any) -> bool:
        """Whether no two can hold at once beside the type `outer`, as `exclusion` tells."""
        marks: list[Mapping[str, Any]] = []
        for option in options:
            if isinstance(option, Mapping) and isinstance(option.get("$ref"), str):
                target = self.resolved(option["$ref"])
                option = target.schema if target else option
            if not isinstance(option, Mapping):
                return False
            mark = mark_of(option, outer)
            self.work.spend(5 + size_of_mark(mark))
            marks.append(mark)
        return all(are_apart(one, other) for index, one in enumerate(marks) for other in marks[:index])

    def _is_recursive(self, reference: str) -> bool:
        """Whether following the reference can lead to it again. Raises `TooLargeError`."""
        if reference not in self._recursive:
            if len(self._recursive) >= _MAX_REFERENCES:
                raise TooLargeError("references")
            seen: set[str] = set()
            queue = [reference]
            while queue:
                behind = self._references_behind(queue.pop())
                self.work.spend(2 + len(behind) // 8)
                new = behind - seen
                seen |= new
                queue += new
            self._recursive[reference] = reference in seen
        return self._recursive[reference]

    def _references_behind(self, reference: str) -> frozenset[str]:
        """Those in the schema that it leads to."""
        target = self.resolved(reference)
        if target is None:
            return frozenset()
        if id(target.schema) not in self._inner:
            found: set[str] = set()
            for schema in objects_in(target.schema):
                self.work.spend(1)
                if isinstance(name := schema.get("$ref"), str):
                    found.add(name)
            self._inner[id(target.schema)] = frozenset(found)
        return self._inner[id(target.schema)]


def integer(part: Part, key: str, note: Callable[[str], None]) -> int | None:
    """A keyword that is a number of things."""
    value = part.schema.get(key)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if value is not None:
        note(part.below(key))
    return None


def mapping(part: Part, key: str, note: Callable[[str], None]) -> Mapping[str, Any]:
    """A keyword that is an object, empty where it is not there."""
    value = part.schema.get(key)
    if isinstance(value, Mapping):
        return value
    if value is not None:
        note(part.below(key))
    return {}


def objects_in(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Every object in `schema`, itself included."""
    queue = [schema]
    while queue:
        node = queue.pop()
        if isinstance(node, Mapping):
            yield node
            queue += node.values()
        elif isinstance(node, list):
            queue += node


def _inner_references(root: Any) -> set[str]:
    """References in schemas with an `$id` of their own, where `#` is not the whole document."""
    found: set[str] = set()
    queue = [(root, False)]
    while queue:
        node, is_inner = queue.pop()
        if isinstance(node, Mapping):
            name = node.get("$id")
            is_inner = is_inner or (node is not root and isinstance(name, str) and not name.startswith("#"))
            if is_inner and isinstance(reference := node.get("$ref"), str):
                found.add(reference)
            queue += [(value, is_inner) for value in node.values()]
        elif isinstance(node, list):
            queue += [(value, is_inner) for value in node]
    return found


def _unescaped(key: str) -> str:
    """A step of a JSON pointer in a URI's fragment."""
    return unquote(key).replace("~1", "/").replace("~0", "~")
