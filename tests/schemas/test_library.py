"""Schemas are known by their content, and only so many of them."""

from __future__ import annotations

from typing import Any

import pytest

from server.errors import InvalidRequestError
from server.schemas.library import SchemaLibrary
from server.schemas.validator import MAX_SCHEMA_BYTES

STRING = {"type": "string"}


def parameters(name: str) -> dict[str, Any]:
    return {"properties": {name: STRING}}


def test_the_same_content_is_the_same_schema() -> None:
    library = SchemaLibrary()

    assert library.parameters(parameters("a")) is library.parameters(parameters("a"))
    assert library.parameters(parameters("a")) is not library.parameters(parameters("b"))
    assert library.parameters(parameters("a")).validator is library.parameters(parameters("a")).validator


def test_libraries_share_nothing() -> None:
    assert SchemaLibrary().schema(STRING) is not SchemaLibrary().schema(STRING)


def test_parameters_are_held_to_more_than_answers_are() -> None:
    library = SchemaLibrary()
    library.schema(STRING)

    with pytest.raises(InvalidRequestError):
        library.parameters(STRING)


def test_a_mistake_is_told_each_time_with_its_own_path() -> None:
    library = SchemaLibrary()

    for where in ("tools[0].function.parameters", "tools[1].function.parameters"):
        with pytest.raises(InvalidRequestError) as caught:
            library.parameters({"type": "text"}, where)
        assert f"{where}.type" == caught.value.param


def test_the_least_recently_used_goes_first() -> None:
    library = SchemaLibrary(max_schemas=2)
    first, second = library.parameters(parameters("a")), library.parameters(parameters("b"))

    assert first is library.parameters(parameters("a"))
    library.parameters(parameters("c"))
    assert first is library.parameters(parameters("a"))
    assert second is not library.parameters(parameters("b"))


def test_bytes_are_bounded_and_what_fits_in_no_library_is_usable_all_the_same() -> None:
    library = SchemaLibrary(max_bytes=100)
    small = library.parameters(parameters("a"))
    large = library.parameters(parameters("b" * 200))

    assert {"b" * 200: frozenset({"string"})} == large.argument_types
    assert large is not library.parameters(parameters("b" * 200))
    assert small is not library.parameters(parameters("a"))
    assert library.parameters(parameters("a")) is library.parameters(parameters("a"))


def test_values_are_not_held_to_what_is_too_large_to_prepare() -> None:
    library = SchemaLibrary()

    assert library.schema({"enum": ["a" * (MAX_SCHEMA_BYTES - 20)]}).validator is not None
    assert library.schema({"enum": ["a" * MAX_SCHEMA_BYTES]}).validator is None


def test_types_of_thousands_of_properties_are_not_read() -> None:
    large = SchemaLibrary().parameters({"properties": {str(number): dict(STRING) for number in range(5000)}})

    assert {} == large.argument_types
