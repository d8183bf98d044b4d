"""The keywords of JSON Schema: what each may hold, and where the schemas inside a schema are.

Role: the one table of the vocabulary. Keywords that are not in it are annotations, whatever they hold. A keyword has the form of
the draft, or where the draft does not know it, that of the others: so what reads schemas can rely on one form.
Source: JSON Schema drafts 4, 6, 7, 2019-09 and 2020-12.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from server.quoting import shown

TYPES: Final = ("string", "integer", "number", "boolean", "null", "object", "array")
NEWEST_DRAFT: Final = 2020

Step = str | int
"""One step of a path: a key, or a place in a list."""

_DRAFTS: Final = {
    "json-schema.org/draft-04/schema": 4,
    "json-schema.org/draft-06/schema": 6,
    "json-schema.org/draft-07/schema": 7,
    "json-schema.org/draft/2019-09/schema": 2019,
    "json-schema.org/draft/2020-12/schema": NEWEST_DRAFT,
}

_DRAFT_NAMES: Final = ", ".join(f"`http://{name}`" for name in _DRAFTS)

_SCHEMA: Final = frozenset({
    "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
MAPS: Final = frozenset({"$defs", "definitions", "dependentSchemas", "dependencies", "patternProperties", "properties"})


def draft_of(schema: Any, default: int = NEWEST_DRAFT) -> int | None:
    """The draft that `$schema` names, `default` where there is none, None where nobody knows it."""
    if not isinstance(schema, dict) or "$schema" not in schema:
        return default
    name = schema["$schema"]
    return _DRAFTS.get(name.partition("://")[2].removesuffix("#")) if isinstance(name, str) else None


def is_schema(value: Any) -> bool:
    """Whether `value` may stand where a schema is expected; what it holds is another question."""
    return isinstance(value, dict | bool)


def stands_alone(schema: Mapping[str, Any], draft: int) -> bool:
    """Whether a reference hides all that is said beside it, as it did before 2019-09."""
    return draft < 2019 and "$ref" in schema


def inner_schemas(schema: Mapping[str, Any]) -> Iterator[tuple[tuple[Step, ...], Any]]:
    """The schemas directly inside a well-formed one, each with its path."""
    for key, value in schema.items():
        if key in _SCHEMA:
            if isinstance(value, list):  # `items` of the drafts before 2020-12
                yield from (((key, index), inner) for index, inner in enumerate(value))
            else:
                yield (key,), value
        elif key in _LISTS:
            yield from (((key, index), inner) for index, inner in enumerate(value))
        elif key in MAPS:
            yield from (((key, name), inner) for name, inner in value.items() if not isinstance(inner, list))


def fault_of(schema: Mapping[str, Any], draft: int) -> tuple[tuple[Step, ...], str] | None:
    """The first keyword whose value can't be: where it is in `schema`, and what is wrong in words that follow `is`."""
    for key, value in schema.items():
        check = _CHECKS.get(key)
        if check is not None and (fault := check(value, draft)) is not None:
            path, words = fault
            return (key, *path), words
    return None


Fault = tuple[tuple[Step, ...], str]
_Check = Callable[[Any, int], Fault | None]


def _wrong(value: Any, wanted: str, *path: Step) -> Fault:
    return path, f"`{shown(value)}`; it must be {wanted}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _any_schema(value: Any, draft: int) -> Fault | None:
    return None if is_schema(value) else _wrong(value, "a schema: an object, true or false")


def _schemas(value: Any, draft: int) -> Fault | None:
    if not isinstance(value, list) or not value:
        return _wrong(value, "a list of one schema at least")
    for index, schema in enumerate(value):
        if not is_schema(schema):
            return _wrong(schema, "a schema: an object, true or false", index)
    return None


def _items(value: Any, draft: int) -> Fault | None:
    if not isinstance(value, list):
        return _any_schema(value, draft)
    if draft < NEWEST_DRAFT:
        return _schemas(value, draft)
    return _wrong(value, "one schema for all elements; write schemas by position as `prefixItems`")


def _schema_map(value: Any, draft: int) -> Fault | None:
    if not isinstance(value, dict):
        return _wrong(value, "an object of schemas")
    for name, schema in value.items():
        if not is_schema(schema):
            return _wrong(schema, "a schema: an object, true or false", name)
    return None


def _names(value: Any, draft: int) -> Fault | None:
    if not isinstance(value, list):
        return _wrong(value, "a list of names")
    for index, name in enumerate(value):
        if not isinstance(name, str):
            return _wrong(name, "a name", index)
    return _wrong(value, "a list in which no name comes twice") if len(set(value)) < len(value) else None


def _name_lists(value: Any, draft: int) -> Fault | None:
    if not isinstance(value, dict):
        return _wrong(value, "an object of lists of names")
    for key, names in value.items():
        if fault := _names(names, draft):
            return (key, *fault[0]), fault[1]
    return None


def _dependencies(value: Any, draft: int) -> Fault | None:
    if not isinstance(value, dict):
        return _wrong(value, "an object of schemas or lists of names")
    for key, inner in value.items():
        if fault := (_names if isinstance(inner, list) else _any_schema)(inner, draft):
            return (key, *fault[0]), fault[1]
    return None


def _type(value: Any, draft: int) -> Fault | None:
    wanted = "one of " + ", ".join(f"`{name}`" for name in TYPES)
    if not isinstance(value, list):
        return None if isinstance(value, str) and value in TYPES else _wrong(value, f"{wanted}, or a list of them")
    if not value or any(not isinstance(name, str) or name not in TYPES for name in value):
        bad = next((name for name in value if not isinstance(name, str) or name not in TYPES), value)
        return (), f"a list with `{shown(bad)}`; each must be {wanted}" if value else "empty; name a type or leave it out"
    return _wrong(value, "a list in which no type comes twice") if len(set(value)) < len(value) else None


def _count(value: Any, draft: int) -> Fault | None:
    fits = _is_number(value) and value >= 0 and value == value // 1
    return None if fits else _wrong(value, "a whole number, 0 or more")


def _number(value: Any, draft: int) -> Fault | None:
    return None if _is_number(value) else _wrong(value, "a number")


def _exclusive(value: Any, draft: int) -> Fault | None:
    if draft == 4:
        return None if isinstance(value, bool) else _wrong(value, "true or false in this draft")
    if isinstance(value, bool):
        return _wrong(value, "the number itself; true and false are of draft 4 only")
    return _number(value, draft)


def _factor(value: Any, draft: int) -> Fault | None:
    return None if _is_number(value) and value > 0 else _wrong(value, "a number above 0")


def _text(value: Any, draft: int) -> Fault | None:
    return None if isinstance(value, str) else _wrong(value, "a text")


def _flag(value: Any, draft: int) -> Fault | None:
    return None if isinstance(value, bool) else _wrong(value, "true or false")


def _list(value: Any, draft: int) -> Fault | None:
    return None if isinstance(value, list) else _wrong(value, "a list")


def _name(value: Any, draft: int) -> Fault | None:
    if draft >= 2019 and isinstance(value, str) and value.partition("#")[2]:
        return _wrong(value, "a URI without a fragment; name a place with `$anchor`")
    return _text(value, draft)


def _schema_name(value: Any, draft: int) -> Fault | None:
    if not isinstance(value, str):
        return _text(value, draft)
    return None if draft_of({"$schema": value}) else _wrong(value, f"one of {_DRAFT_NAMES}, or left out")


_CHECKS: Final[Mapping[str, _Check]] = {
    **dict.fromkeys(_SCHEMA, _any_schema),
    **dict.fromkeys(_LISTS, _schemas),
    **dict.fromkeys(MAPS, _schema_map),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _count),
    **dict.fromkeys(("minContains", "maxContains"), _count),
    **dict.fromkeys(("minimum", "maximum"), _number),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _exclusive),
    **dict.fromkeys(("$ref", "pattern", "format", "title", "description"), _text),
    **dict.fromkeys(("$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveRef"), _text),
    **dict.fromkeys(("$comment", "contentEncoding", "contentMediaType"), _text),
    **dict.fromkeys(("readOnly", "writeOnly"), _flag),
    **dict.fromkeys(("deprecated", "$recursiveAnchor"), _flag),
    "$id": _name,
    "$schema": _schema_name,
    "additionalItems": _any_schema,
    "dependencies": _dependencies,
    "dependentRequired": _name_lists,
    "enum": _list,
    "examples": _list,
    "items": _items,
    "multipleOf": _factor,
    "required": _names,
    "type": _type,
    "uniqueItems": _flag,
}
KEYWORDS: Final = frozenset(_CHECKS)
