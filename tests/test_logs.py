"""Every line has the configured shape, whoever writes it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Literal

import pytest
import structlog

from server import logs
from server.sections import LogSettings


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    structlog.reset_defaults()
    logs.configure(LogSettings(level="error"))


def test_lines_of_libraries_are_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(LogSettings(format="json"))
    structlog.get_logger("ours").info("request", status=200)
    logging.getLogger("a.library").warning("cut %s", "off")
    logging.getLogger("chatty").info("not shown")
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("lib").exception("failed")

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["event"], line["level"]) for line in lines] == [
        ("request", "info"),
        ("cut off", "warning"),
        ("failed", "error"),
    ]
    assert "ValueError: why" in lines[2]["exception"]


def test_the_level_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(LogSettings(level="error"))
    structlog.get_logger("ours").info("request")
    logging.getLogger("lib").warning("careful")

    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("shape", ["json", "console"])
def test_no_line_has_what_opens_a_url(capsys: pytest.CaptureFixture[str], shape: Literal["json", "console"]) -> None:
    logs.configure(LogSettings(format=shape))
    url = "https://me:hush@hush@collector.internal:4318/v1/traces?of=me@here"
    structlog.get_logger("ours").warning("store_away", error=f"can't reach {url}", mistakes=[f"`{url}`"], pair=(url, 3))
    logging.getLogger("lib").warning("retrying %s", url)
    try:
        raise ValueError(url)
    except ValueError as error:
        structlog.get_logger("ours").exception("background_failed", error=str(error))
        logging.getLogger("lib").exception("failed")

    said = capsys.readouterr().err
    assert "hush" not in said
    assert 7 == said.count("https://…@collector.internal:4318/v1/traces?of=me@here") + said.count(
        "https://\\u2026@collector.internal"
    )


@pytest.mark.parametrize("shape", ["json", "console"])
def test_what_matters_most_comes_first(capsys: pytest.CaptureFixture[str], shape: Literal["json", "console"]) -> None:
    logs.configure(LogSettings(format=shape))
    structlog.get_logger("ours").info("request", status=200, path="/v1/models", error="none", a_detail=1)

    said = capsys.readouterr().err
    places = [said.index(name) for name in ("status", "path", "error", "a_detail")]
    assert sorted(places) == places
