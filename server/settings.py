"""Every setting: its name, meaning, default and origin.

Role: the only place that reads the environment. One YAML file, the environment (`K3GW_SECTION__FIELD`) and command-line flags;
flags win over the environment, the environment over the file, the file over the defaults. Unknown names are errors.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings import SettingsError as SourceError

PREFIX = "K3GW_"
SECRETS = frozenset({"tenancy.key"})
"""Settings whose values are never shown, right or wrong."""


class SettingsError(Exception):
    """The configuration can't be used. `mistakes` lists every one, each with its path."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


class Section(BaseModel):
    """A group of settings; unknown names are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class HttpSettings(Section):
    """How the gateway listens."""

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    max_body_bytes: int = Field(default=64 * 1024 * 1024, ge=1024)
    keepalive_interval_s: float = Field(default=10.0, gt=0)
    write_timeout_s: float = Field(default=60.0, gt=0)
    drain_timeout_s: int = Field(default=30, ge=0)


class EngineSettings(Section):
    """Which engine generates the tokens."""

    kind: Literal["vllm", "scripted"] = "vllm"
    profile: str = "cpu-demo"
    model_path: Path | None = None
    overrides: dict[str, Any] = {}
    script: Path | None = None
    vocab: Path | None = None

    def check_scripted(self) -> None:
        """Raise `ValueError` for what the scripted engine does not take."""
        for name, value in self.overrides.items():
            if name not in ("context_length", "seats"):
                raise ValueError(f"engine.overrides.{name}: the scripted engine takes `context_length` and `seats`")
            if type(value) is not int or value < 1:
                raise ValueError(f"engine.overrides.{name}: `{value}`: must be a whole number above 0")
        if self.script is not None and not self.script.is_file():
            raise ValueError(f"engine.script: `{self.script}`: there is no such file")


class ModelSettings(Section):
    """One model by the name that clients send.

    `sampling`: which values clients may send; `open` takes the engine's ranges, `moonshot` refuses what hosted K3 refuses, `pin`
    ignores it. `grammar`: which answers are held to the form that was asked for; `strict` holds arguments of `strict` tools only.
    `tool_call_policy`: what becomes of a call that does not fit its schema; `retry` samples it again, up to `tool_call_retries`
    times. `usage_in_choice`: streams carry the token counts in the last choice, too, where Kimi's own clients look for them;
    unset: where `sampling` is `moonshot`.
    """

    aliases: list[str] = []
    format: Literal["kimi_k3", "plain"] = "kimi_k3"
    reasoning_field: Literal["both", "reasoning_content", "reasoning"] = "both"
    sampling: Literal["open", "moonshot", "pin"] = "open"
    grammar: Literal["off", "strict", "always"] = "always"
    tool_call_policy: Literal["report", "retry", "error"] = "report"
    tool_call_retries: int = Field(default=2, ge=1, le=10)
    usage_in_choice: bool | None = None

    @field_validator("grammar", mode="before")
    @classmethod
    def _yaml_off(cls, grammar: Any) -> Any:
        return "off" if grammar is False else grammar  # YAML reads a bare `off` as false


class TenancySettings(Section):
    """Who may use the gateway. `off` opens it to everybody who can reach it, so it is refused unless bound to loopback."""

    auth: Literal["keys", "off"] = "keys"
    key: SecretStr | None = None

    @field_validator("auth", mode="before")
    @classmethod
    def _yaml_off(cls, auth: Any) -> Any:
        return "off" if auth is False else auth  # YAML reads a bare `off` as false

    @field_validator("key")
    @classmethod
    def _long_enough(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and len(key.get_secret_value()) < 16:
            raise ValueError("is shorter than 16 characters; a key that can be guessed protects nothing")
        return key


class MetricsSettings(Section):
    """Who may read `/metrics`: `loopback` (no key from this machine, any key from elsewhere) or `key` (always a key)."""

    access: Literal["loopback", "key"] = "loopback"


class LogSettings(Section):
    """What is logged, to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["console", "json"] = "console"


class Settings(BaseSettings):
    """All settings of one gateway. `load` makes them; made directly, they read no file and no environment."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    http: HttpSettings = HttpSettings()
    engine: EngineSettings = EngineSettings()
    models: dict[str, ModelSettings] = {"kimi-k3": ModelSettings(aliases=["moonshotai/Kimi-K3", "default"])}
    tenancy: TenancySettings = TenancySettings()
    metrics: MetricsSettings = MetricsSettings()
    log: LogSettings = LogSettings()

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what it is given; `load` merges the sources itself, to know where each value comes from."""
        return (init_settings,)

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        if not self.models:
            raise ValueError("models: names no model; name at least one")
        names = [name for model, of in self.models.items() for name in (model, *of.aliases)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"models: `{twice[0]}` names two models; names and aliases must differ")
        if self.engine.kind == "scripted":
            self.engine.check_scripted()
        if self.tenancy.auth == "off" and not is_loopback(self.http.host):
            raise ValueError(f"tenancy.auth: is `off`, but http.host is `{self.http.host}`; bind to 127.0.0.1 or use keys")
        return self


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def load(config: Path | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
    """The settings of a configuration file, the environment and flags. Raises `SettingsError` with every mistake.

    `flags`: dotted name -> value, None for a flag that was not given.
    """
    return load_with_origins(config, flags)[0]


def load_with_origins(config: Path | None = None, flags: Mapping[str, Any] | None = None) -> tuple[Settings, dict[str, str]]:
    """As `load`, with the origin of every setting that is not a default: dotted name -> the file, `K3GW_…` or `flag`."""
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for values, origin in ((_from_file(config), str(config)), (_from_environment(), PREFIX), (_nested(given), "flag")):
        merged = _merge(merged, values)
        for name in _flat(values):
            origins[name] = PREFIX + name.replace(".", "__").upper() if origin == PREFIX else origin
    mistakes = _unknown_variables()
    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        mistakes += [_describe(detail, origins) for detail in error.errors()]
    if mistakes:
        raise SettingsError(mistakes)
    return settings, origins


def flatten(settings: Settings) -> dict[str, Any]:
    """Dotted name -> value of every setting; secrets stay hidden."""
    return _flat(settings.model_dump(mode="json"))


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        for part in reversed(name.split(".")):
            value = {part: value}
        nested = _merge(nested, value)
    return nested


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both, key by key at every depth; `above` wins."""
    merged = dict(below)
    for key, value in above.items():
        inner = merged.get(key)
        merged[key] = _merge(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


def _from_file(config: Path | None) -> dict[str, Any]:
    if config is None:
        return {}
    try:
        content = yaml.safe_load(config.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError([f"{config}: can't be read: {error.strerror}"]) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError([f"{config}: is not YAML: {error}"]) from None
    if content is not None and not isinstance(content, dict):
        raise SettingsError([f"{config}: must be a mapping of sections ({', '.join(Settings.model_fields)})"])
    return content or {}


def _from_environment() -> dict[str, Any]:
    """`K3GW_SECTION__FIELD` as nested values: text as it is, lists and mappings as JSON."""
    try:
        return EnvSettingsSource(Settings, env_prefix=PREFIX, env_nested_delimiter="__", case_sensitive=False)()
    except SourceError as error:
        raise SettingsError([f"{error}; a list or a mapping is given as JSON"]) from None


def _unknown_variables() -> list[str]:
    sections = ", ".join(Settings.model_fields)
    names = {name: name[len(PREFIX) :].partition("__")[0].lower() for name in os.environ if name.upper().startswith(PREFIX)}
    unknown = sorted((name, section) for name, section in names.items() if section not in Settings.model_fields)
    return [f"{name}: there is no section `{section}`; sections are {sections}" for name, section in unknown]


def _describe(detail: Any, origins: Mapping[str, str]) -> str:
    name = ".".join(str(part) for part in detail["loc"])
    origin = next((origins[key] for key in origins if key == name or key.startswith(f"{name}.")), None)
    if detail["type"] == "extra_forbidden":
        text = "there is no such setting; `check-config` prints those there are"
    else:
        text = detail["msg"].removeprefix("Value error, ")
        if name and name not in SECRETS and isinstance(detail["input"], (str, int, float, bool)):
            text = f"`{detail['input']}`: {text}"
    return (f"{name}: " if name else "") + text + (f" (from {origin})" if origin else "")
