"""Reads a file of tenants: YAML or JSON, `tenants: {name: {...}}` or that mapping alone.

Invariant: a file with mistakes gives no tenants at all, but every mistake with its line.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter, ValidationError

from server.quoting import cut, shown
from server.sections import TenantSettings
from server.setting_types import TENANT_NAME_RULE, TenantName
from server.tenancy.marked_yaml import MarkedYaml

NAME: Final[TypeAdapter[str]] = TypeAdapter(TenantName)
NAME_RULE: Final = f"is no name of a tenant; {TENANT_NAME_RULE}"
MAX_BYTES: Final = 16 * 1024 * 1024
MAX_MISTAKES: Final = 100


class TenantsFileError(Exception):
    """The file can't be used. `mistakes`: each with its line, in the file's order, the first hundred of them."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


def read_tenants(path: Path, models: Collection[str] | None = None) -> dict[str, TenantSettings]:
    """The tenants of a file, by name. `models`: the names there are, where they are known. Raises `TenantsFileError`."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise TenantsFileError([f"{path}: can't be read: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise TenantsFileError([f"{path}: line {line}: is not UTF-8"]) from None
    if len(content) > MAX_BYTES:
        raise TenantsFileError([f"{path}: is larger than {MAX_BYTES // 1024**2} MiB"])
    try:
        return parse_tenants(text, models, is_json=path.suffix == ".json")
    except TenantsFileError as error:
        raise TenantsFileError([f"{path}: {mistake}" for mistake in error.mistakes]) from None


def parse_tenants(text: str, models: Collection[str] | None = None, *, is_json: bool = False) -> dict[str, TenantSettings]:
    """As `read_tenants`, of a file's text."""
    document = MarkedYaml(text, is_json=is_json)
    prefix: tuple[str, ...] = ()
    named = document.value
    if isinstance(named, dict) and "tenants" in named:
        prefix = ("tenants",)
        for key in named:
            if key != "tenants":
                document.wrong((key,), "stands beside `tenants`; tenants go under it, and other sections into other files")
        named = named["tenants"]
    tenants: dict[str, TenantSettings] = {}
    if isinstance(named, dict) and named:
        for name, value in named.items():
            tenant = _tenant(document, (*prefix, name), value, models)
            if tenant is not None:
                tenants[name] = tenant
    elif not document.mistakes:
        document.wrong(prefix, "must be a mapping of at least one tenant's name to its settings, as in `acme: {weight: 2}`")
    if document.mistakes:
        raise TenantsFileError(_in_order(document))
    return tenants


def _tenant(document: MarkedYaml, path: tuple[str, ...], value: Any, models: Collection[str] | None) -> TenantSettings | None:
    """One tenant, or None and its mistakes noted in `document`."""
    try:
        NAME.validate_python(path[-1])
    except ValidationError:
        document.wrong(path, NAME_RULE)
    if isinstance(value, dict):
        _check_values(document, path, value, models)
    try:
        return TenantSettings.model_validate(value)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            document.wrong((*path, *detail["loc"]), _described(detail))
        return None


def _check_values(document: MarkedYaml, path: tuple[str, ...], value: dict[str, Any], models: Collection[str] | None) -> None:
    """What the settings' types let pass: models there are not, and truth values for numbers."""
    named = value.get("models")
    for number, model in enumerate(named if isinstance(named, list) and models is not None else ()):
        if isinstance(model, str) and model not in (models or ()):
            known = ", ".join(sorted(models or ()))
            document.wrong((*path, "models", number), f"`{shown(model)}`: there is no such model; models are: {known}")
    for section, of in (("", value), *((key, inner) for key, inner in value.items() if isinstance(inner, dict))):
        for key, inner in of.items():
            here = (*path, section, key) if section else (*path, key)
            if isinstance(inner, bool) and key != "suspended":
                document.wrong(here, f"`{shown(inner)}`: is a truth value to YAML; give a number, or put text in quotes")


def _described(detail: Any) -> str:
    if detail["type"] == "extra_forbidden":
        return f"there is no such setting; settings here are: {', '.join(_fields(detail['loc'][:-1]))}"
    if detail["type"] == "model_type":
        return f"`{shown(detail['input'])}`: must be a mapping of settings, `{{}}` for none"
    return f"`{shown(detail['input'])}`: {detail['msg'].removeprefix('Value error, ')}"


def _fields(loc: tuple[str | int, ...]) -> list[str]:
    model: type[BaseModel] = TenantSettings
    for part in loc:
        inner = model.model_fields[str(part)].annotation
        assert isinstance(inner, type)
        assert issubclass(inner, BaseModel)
        model = inner
    return list(model.model_fields)


def _in_order(document: MarkedYaml) -> list[str]:
    mistakes = []
    for (line, path), what in sorted(document.mistakes.items(), key=lambda mistake: (mistake[0][0], str(mistake[0][1]))):
        name = "".join(f"[{part}]" if isinstance(part, int) else f".{cut(part)}" for part in path).removeprefix(".")
        mistakes.append(f"line {line}: {name}: {what}" if name else f"line {line}: {what}")
    more = len(mistakes) - MAX_MISTAKES
    return mistakes[:MAX_MISTAKES] + ([f"and {more} more"] if more > 0 else [])
