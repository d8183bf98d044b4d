"""Every setting: its name, meaning, default and origin.

Role: the only place that reads the environment. One YAML file, the environment (`K3GW_SECTION__FIELD`) and command-line flags;
flags win over the environment, the environment over the file, the file over the defaults. Unknown names are errors.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings import SettingsError as SourceError

from server.held import SHARE_OF_ONE_TENANT
from server.media_sections import MediaSettings
from server.sections import (
    MEMORY_URL,
    AdmissionSettings,
    EngineSettings,
    HttpSettings,
    LogSettings,
    MetricsSettings,
    ModelSettings,
    StorageSettings,
    TenancySettings,
    TenantSettings,
    TracingSettings,
)
from server.setting_types import TenantName

PREFIX = "K3GW_"
SECRETS = frozenset({
    "tenancy.key", "tenancy.admin_key", "tenancy.cache_secret", "metrics.key", "storage.ledger_url", "storage.limits_url",
    "tracing.endpoint", "tracing.headers",
})  # fmt: skip
"""Settings whose wrong values are not repeated."""
_VISIBLE = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
}
_PASSWORD = re.compile(r"(?<=://)([^/@:]*:)[^/]*(?=@)|(?<=[?&])([^=&]*password=)[^&]*")  # to the last `@`: some are not escaped
_SECRET = re.compile(r"(?:token|key)$|(?:secret|password)[^.]*$", re.IGNORECASE)
"""Names of secrets, ours and those that an engine's arguments and variables may have."""


class SettingsError(Exception):
    """The configuration can't be used. `mistakes` lists every one, each with its path."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


class Settings(BaseSettings):
    """All settings of one gateway. `load` makes them; made directly, they read no file and no environment."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    http: HttpSettings = HttpSettings()
    engine: EngineSettings = EngineSettings()
    models: dict[str, ModelSettings] = {"kimi-k3": ModelSettings(aliases=["moonshotai/Kimi-K3", "default"])}
    tenants: dict[TenantName, TenantSettings] = {}
    tenancy: TenancySettings = TenancySettings()
    admission: AdmissionSettings = AdmissionSettings()
    media: MediaSettings = MediaSettings()
    storage: StorageSettings = StorageSettings()
    metrics: MetricsSettings = MetricsSettings()
    tracing: TracingSettings = TracingSettings()
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
        keys = [key for key in (self.tenancy.key, self.tenancy.admin_key, self.metrics.key) if key is not None]
        if len(set(keys)) < len(keys):
            raise ValueError("tenancy.key, tenancy.admin_key and metrics.key: two are the same; each must open only its own")
        for name, of in self.tenants.items():
            if unknown := sorted(set(of.models or ()) - set(self.models)):
                raise ValueError(f"tenants.{name}.models: there is no model `{unknown[0]}`; models are: {', '.join(self.models)}")
        if self.admission.max_held_bytes * SHARE_OF_ONE_TENANT < self.http.max_body_bytes:
            raise ValueError(
                "admission.max_held_bytes: a quarter of it, which one tenant may hold, is less than http.max_body_bytes: some "
                "bodies could never be taken"
            )
        if self.engine.kind == "scripted":
            self.engine.check_scripted()
        if self.http.workers > 1 and self.storage.limits_url == MEMORY_URL:
            raise ValueError(
                f"http.workers: {self.http.workers} processes can't share limits that are in the memory of one, and "
                f"storage.limits_url is `{MEMORY_URL}`; name a Redis there, `redis://host:port/number`, or use one worker"
            )
        if self.tenancy.auth == "off" and not is_loopback(self.http.host):
            raise ValueError(f"tenancy.auth: is `off`, but http.host is `{self.http.host}`; bind to 127.0.0.1 or use keys")
        return self


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def visible_devices(vendor: str) -> tuple[str, str | None]:
    """The variable that says which GPUs of `nvidia` or `amd` the engine is shown, and what it says; None: all."""
    return next(((name, os.environ[name]) for name in _VISIBLE[vendor] if name in os.environ), ("", None))


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
    """Dotted name -> value of every setting; secrets stay hidden, the passwords of URLs among them."""
    return {name: showable(name, value) for name, value in _flat(settings.model_dump(mode="json")).items()}


def showable(name: str, value: Any) -> Any:
    """`value` as it may be seen under this dotted name: with no secret at any depth, and no password of a URL."""
    if isinstance(value, Mapping):
        return {key: showable(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [showable(name, inner) for inner in value]
    if not isinstance(value, str):
        return value
    return "***" if value and _SECRET.search(name) else _PASSWORD.sub(r"\1\2***", value)


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
    except yaml.MarkedYAMLError as error:  # its own text repeats the lines, which may have secrets
        line = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        raise SettingsError([f"{config}: {line}is not YAML: {error.problem or error.context}"]) from None
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


def _is_secret(name: str) -> bool:
    return any(name == secret or name.startswith(f"{secret}.") for secret in SECRETS)


def _describe(detail: Any, origins: Mapping[str, str]) -> str:
    name = ".".join(str(part) for part in detail["loc"])
    origin = next((origins[key] for key in origins if key == name or key.startswith(f"{name}.")), None)
    if detail["type"] == "extra_forbidden":
        text = "there is no such setting; `check-config` prints those there are"
    else:
        text = detail["msg"].removeprefix("Value error, ")
        if name and not _is_secret(name) and isinstance(detail["input"], (str, int, float, bool)):
            text = f"`{detail['input']}`: {text}"
    return (f"{name}: " if name else "") + text + (f" (from {origin})" if origin else "")
