"""What goes with every export is a secret, and is shown nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.settings import SettingsError, flatten, load


def written(folder: Path, text: str) -> Path:
    path = folder / "gateway.yaml"
    path.write_text(text)
    return path


def test_headers_are_not_shown(tmp_path: Path) -> None:
    settings = load(written(tmp_path, "tracing: {exporter: otlp, headers: {authorization: hush-hush}}"))

    assert "hush-hush" == settings.tracing.headers["authorization"].get_secret_value()
    assert "hush" not in repr(flatten(settings)) + repr(settings)


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("headers: {authorization: 112233}", "tracing.headers.authorization: "),
        ("headers: 112233", "tracing.headers: "),
        (
            'headers: {authorization: "Bearer 112233\\r\\nx-admin: 1"}',
            "tracing.headers: `authorization`: has a value that HTTP does not",
        ),
        ("headers: {authorization: 'Bearer 112233…'}", "tracing.headers: `authorization`: has a value that HTTP does not take"),
        ("headers: {authorization: ''}", "tracing.headers: `authorization`: has a value that HTTP does not take"),
        ("headers: {'112233 authorization': x}", "tracing.headers: has a name that HTTP does not take"),
        ("endpoint: 'http://me:112233@collector'", "tracing.endpoint: is no `http://host:port`"),
    ],
)
def test_wrong_secrets_are_not_repeated(tmp_path: Path, text: str, mistake: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(written(tmp_path, f"tracing: {{{text}}}"))

    assert mistake in str(caught.value)
    assert "112233" not in str(caught.value)


@pytest.mark.parametrize("text", ["sample_ratio: 1.5", "sample_ratio: -1", "client_samples_per_minute: -1", "exporter: jaeger"])
def test_values_out_of_range(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError, match=r"^tracing\."):
        load(written(tmp_path, f"tracing: {{{text}}}"))
