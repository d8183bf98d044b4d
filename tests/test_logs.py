"""Every line has the configured shape, whoever writes it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

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
