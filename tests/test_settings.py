"""Where a setting comes from, and what is said of a wrong one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from server.settings import Settings, SettingsError, flatten, load, load_with_origins


def write(folder: Path, text: str) -> Path:
    file = folder / "gateway.yaml"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("K3GW_")]:
        monkeypatch.delenv(name)


def mistakes_of(config: Path | None = None, flags: dict[str, Any] | None = None) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(config, flags)
    return caught.value.mistakes


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, "http: {port: 1, host: 127.0.0.2, max_body_bytes: 5000}\n")
    monkeypatch.setenv("K3GW_HTTP__PORT", "2")
    monkeypatch.setenv("K3GW_HTTP__HOST", "::1")
    settings, origins = load_with_origins(file, {"http.port": 3, "http.host": None})

    assert (settings.http.port, settings.http.host, settings.http.max_body_bytes, settings.http.drain_timeout_s) == (
        3,
        "::1",
        5000,
        30,
    )
    assert origins == {"http.port": "flag", "http.host": "K3GW_HTTP__HOST", "http.max_body_bytes": str(file)}


def test_every_mistake_is_listed_with_path_and_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K3GW_LOG__LEVEL", "loud")
    monkeypatch.setenv("K3GW_HTTP__HOT", "1")
    monkeypatch.setenv("K3GW_NOPE__X", "1")
    file = write(tmp_path, "http: {port: high, hots: x}\nmodels: {m: {format: latin}}\n")
    mistakes = mistakes_of(file)

    found = {mistake.split(":")[0] for mistake in mistakes}
    assert found == {"http.port", "http.hots", "http.hot", "models.m.format", "log.level", "K3GW_NOPE__X"}
    assert any(str(file) in mistake for mistake in mistakes)
    assert any("K3GW_LOG__LEVEL" in mistake for mistake in mistakes)


@pytest.mark.parametrize("text", ["http: [", "- a\n- b\n", "http: 3\n", "\x00"])
def test_a_file_that_is_no_configuration_is_one_mistake(tmp_path: Path, text: str) -> None:
    assert len(mistakes_of(write(tmp_path, text))) == 1


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "no.yaml") in mistakes_of(tmp_path / "no.yaml")[0]


def test_an_open_gateway_is_bound_to_loopback() -> None:
    assert "tenancy.auth" in mistakes_of(None, {"tenancy.auth": "off", "http.host": "0.0.0.0"})[0]
    assert load(None, {"tenancy.auth": "off"}).tenancy.auth == "off"


def test_names_and_aliases_of_models_differ(tmp_path: Path) -> None:
    file = write(tmp_path, "models: {a: {aliases: [x]}, b: {aliases: [x]}}\n")

    assert "`x` names two models" in mistakes_of(file)[0]


def test_secrets_are_not_printed() -> None:
    settings = load(None, {"tenancy.key": "a-very-secret-key-of-mine"})

    assert "very-secret" not in str(flatten(settings))
    assert "very-secret" not in repr(settings)


def test_passwords_of_urls_are_not_printed() -> None:
    urls = {"storage.ledger_url": "postgresql://me:hunter2@db/k3", "storage.limits_url": "redis://:hunter2@cache/0"}
    shown = flatten(load(None, urls))

    assert "postgresql://me:***@db/k3" == shown["storage.ledger_url"]
    assert "redis://:***@cache/0" == shown["storage.limits_url"]


def test_a_password_with_an_at_sign_is_not_printed_in_part() -> None:
    shown = flatten(load(None, {"storage.limits_url": "redis://me:first@second@c/0"}))
    assert "redis://me:***@c/0" == shown["storage.limits_url"]


@pytest.mark.parametrize("name", ["hf_token", "HF_TOKEN", "api_key", "aws_secret_access_key", "password", "S3_PASSWORD_OF_US"])
def test_secrets_of_an_engine_s_arguments_are_not_printed_at_any_depth(name: str) -> None:
    overrides = {name: "hush-1", "loader": {"deep": [{name: "hush-2"}], "url": "s3://me:hush-3@host/x"}, "max_num_tokens": "5"}
    shown = flatten(load(None, {"engine.overrides": overrides}))
    assert "hush" not in str(shown)
    assert ("***", "5") == (shown[f"engine.overrides.{name}"], shown["engine.overrides.max_num_tokens"])


def test_passwords_among_the_parameters_of_urls_are_not_printed() -> None:
    settings = Settings.model_validate(
        {
            "storage": {
                "ledger_url": "postgresql://db/k3?user=me&password=secret&ssl=require",
                "limits_url": "redis://c/0?password=secret",
            }
        }
    )
    shown = flatten(settings)

    assert "postgresql://db/k3?user=me&password=***&ssl=require" == shown["storage.ledger_url"]
    assert "redis://c/0?password=***" == shown["storage.limits_url"]


@pytest.mark.parametrize(
    ("text", "line"), [('tenancy:\n  admin_key: "k3gw-secret-key\n  x: 1\n', 4), ("tenancy: {admin_key: k3gw-secret-key: 1}}", 1)]
)
def test_what_is_no_yaml_is_said_without_what_is_there(tmp_path: Path, text: str, line: int) -> None:
    [mistake] = mistakes_of(write(tmp_path, text))

    assert f"gateway.yaml: line {line}: is not YAML: " in mistake
    assert "secret" not in mistake


def test_operators_keys_are_nobodys_api_key() -> None:
    key = "the-same-key-twice-0123"
    [mistake] = mistakes_of(None, {"tenancy.key": key, "tenancy.admin_key": key})

    assert "tenancy.admin_key" in mistake
    assert key not in mistake


def test_a_short_key_is_refused_without_repeating_it() -> None:
    [mistake] = mistakes_of(None, {"tenancy.key": "hunter2"})

    assert "tenancy.key" in mistake
    assert "hunter2" not in mistake


@pytest.mark.parametrize(
    "key", ["1234567890123456", "0x12345678901234567", "'quoted-and-long-enough'", "abc-def-ghi-jkl #mno", "[a, b, c, d, e, f]"]
)
def test_a_key_from_the_environment_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("K3GW_TENANCY__KEY", key)
    loaded = load().tenancy.key

    assert loaded is not None
    assert loaded.get_secret_value() == key


def test_mappings_from_the_environment_are_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K3GW_MODELS", '{"m": {"format": "plain"}}')
    monkeypatch.setenv("K3GW_ENGINE__OVERRIDES", '{"max_num_seqs": 4}')

    assert load().models["m"].format == "plain"
    assert load().engine.overrides == {"max_num_seqs": 4}


def test_a_mapping_that_is_not_json_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K3GW_MODELS", "{m: plain")

    assert "models" in mistakes_of()[0]


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"overrides": {"seats": -1}}, "engine.overrides.seats: `-1`: must be a whole number"),
        ({"overrides": {"context_length": "abc"}}, "engine.overrides.context_length: `abc`"),
        ({"overrides": {"foo": 1}}, "engine.overrides.foo: the scripted engine takes"),
        ({"script": "/nope.yaml"}, "engine.script: `/nope.yaml`: there is no such file"),
    ],
)
def test_what_the_scripted_engine_does_not_take_is_a_mistake(tmp_path: Path, engine: dict[str, Any], words: str) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(json.dumps({"engine": {"kind": "scripted", **engine}}), encoding="utf-8")
    with pytest.raises(SettingsError) as caught:
        load(file)

    [mistake] = caught.value.mistakes
    assert words in mistake


@pytest.mark.parametrize(
    "url", ["redis://:hunter2@h:abc/0", "redis://h:hunter2", "redis://h:99999", "rediss://h/hunter2", "http://hunter2"]
)
def test_a_url_that_is_no_redis_is_named_without_its_secrets(url: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load(None, {"storage.limits_url": url})
    [mistake] = raised.value.mistakes
    assert mistake.startswith("storage.limits_url: ")
    assert "redis://host:port/number" in mistake
    assert "hunter2" not in mistake


@pytest.mark.parametrize(
    "url", ["memory://", "redis://", "redis://h", "redis://h/", "redis://u:p@[::1]:6380/3", "unix:///run/redis.sock"]
)
def test_urls_of_limits_stores(url: str) -> None:
    assert url == load(None, {"storage.limits_url": url}).storage.limits_url
