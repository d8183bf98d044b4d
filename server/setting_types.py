"""The types of single settings, and the base of their groups.

Role: bottom layer, below `sections.py`. Each type says itself what is wrong with a value.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr


def _no_switch(value: Any) -> Any:
    """YAML's `yes` and `on` are no numbers, though Python takes them for 1."""
    if isinstance(value, bool):
        raise ValueError("is a switch, not a number")
    return value


def _long_enough(key: SecretStr) -> SecretStr:
    if len(key.get_secret_value()) < 16:
        raise ValueError("is shorter than 16 characters; a key that can be guessed protects nothing")
    return key


def _no_gap(value: Any) -> Any:
    """What is empty was left out by mistake: an empty path would be the folder of the process, an empty host every address."""
    if isinstance(value, str) and not value.strip():
        raise ValueError("is empty; write one, or leave the setting out")
    return value


def _own_name(name: str) -> str:
    if name == "other":
        raise ValueError("is what metrics call all tenants that have no label of their own; choose another")
    return name


Secret = Annotated[SecretStr, AfterValidator(_long_enough)]
Count = Annotated[int, Field(ge=1, le=10**15), BeforeValidator(_no_switch)]
Place = Annotated[Path, BeforeValidator(_no_gap)]
"""A file or a folder."""

Text = Annotated[str, BeforeValidator(_no_gap)]
Usd = Annotated[Decimal, Field(ge=0, le=10**9, decimal_places=9, allow_inf_nan=False), BeforeValidator(_no_switch)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
"""Of a tenant or a cache group: what can stand in a label, a path and a log line."""

TenantName = Annotated[Name, AfterValidator(_own_name)]
TENANT_NAME_RULE = "use at most 64 letters, digits, `.`, `_` and `-`, and begin with a letter or a digit; `other` is taken"
"""What `TenantName` takes, in words for whoever chose another."""


class Section(BaseModel):
    """A group of settings; unknown names are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)
