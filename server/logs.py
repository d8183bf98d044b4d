"""How log lines look and where they go: to standard error, for people or as JSON, ours and the libraries' alike.

Invariant: no line has what stands before the `@` of a URL, whoever writes it: that is a user, a password or a token.
"""

from __future__ import annotations

import logging
import re
import sys
from contextlib import suppress
from typing import Any, Final

import structlog

from server.sections import LogSettings

SAY_TOO_MUCH = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk._shared_internal",
    "opentelemetry.sdk.trace.export",
)
"""Several lines for each export that fails, with the collector's whole URL; `tracing/otlp.py` says it once a minute."""

_CREDENTIALS: Final = re.compile(r"(?<=://)[^\s/?#]+@")  # to the last `@`: a password may have one that is not escaped
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(settings: LogSettings) -> None:
    """Set up logging for this process. Called by the command line, and again when the settings have changed."""
    renderer: structlog.typing.Processor
    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _without_credentials,
    ]
    if settings.format == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback, sort_keys=False
        )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[settings.level]),
        logger_factory=lambda *args: _Output(sys.stderr),
        cache_logger_on_first_use=False,  # loggers that exist follow a change of the level; 3 µs a line
    )
    # Libraries log through the standard library; the same lines, from `warning` on.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer]
        )
    )
    for name in SAY_TOO_MUCH:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.basicConfig(handlers=[handler], level=max(LEVELS[settings.level], logging.WARNING), force=True)


def _without_credentials(_: Any, __: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {name: _cleaned(value) for name, value in line.items()}


def _cleaned(value: Any) -> Any:
    """Of texts and lists of texts; nothing else that is logged can have a URL."""
    if isinstance(value, str):
        return _CREDENTIALS.sub("…@", value) if "://" in value else value
    if isinstance(value, list | tuple):
        return [_cleaned(part) for part in value]
    return value


class _Output(structlog.PrintLogger):
    """Writes lines. A full disk behind them costs lines, not the requests that log."""

    def msg(self, message: str) -> None:
        """Write `message`."""
        with suppress(OSError, ValueError):
            super().msg(message)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg
