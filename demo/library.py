"""Hand-written tools and the JSON schemas of kinds of values; the tools themselves are in `library.yaml`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

STRING: dict[str, Any] = {"type": "string"}
INTEGER: dict[str, Any] = {"type": "integer"}
NUMBER: dict[str, Any] = {"type": "number"}
BOOLEAN: dict[str, Any] = {"type": "boolean"}
STRINGS: dict[str, Any] = {"type": "array", "items": STRING}
INTEGERS: dict[str, Any] = {"type": "array", "items": INTEGER}
OBJECT: dict[str, Any] = {"type": "object"}
SCHEMAS = {
    "int": INTEGER, "small": INTEGER, "temperature": INTEGER, "float": NUMBER, "bool": BOOLEAN, "words": STRINGS,
    "people": STRINGS, "ints": INTEGERS, "object": OBJECT,
}  # fmt: skip
"""JSON schema of a kind of value; kinds that are not here are strings."""


@dataclass(slots=True, frozen=True)
class Tool:
    """A tool and the talk about it. `parameters`: key -> kind of value. `fields`: what a result has, name -> kind."""

    name: str
    description: str
    parameters: dict[str, str]
    requests: list[str]
    fields: dict[str, str] = field(default_factory=dict)
    answers: list[str] = field(default_factory=list)
    required: list[str] = field(default_factory=list)


LIBRARY = [Tool(**entry) for entry in yaml.safe_load(Path(__file__).with_name("library.yaml").read_text(encoding="utf-8"))]
