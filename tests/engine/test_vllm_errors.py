"""Needs vLLM's classes, but no engine."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest

from server.engine.vllm_errors import translate
from server.errors import EngineDeadError, EngineError, GatewayError, InvalidRequestError, OverloadedError

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def vllm() -> Any:
    """vLLM's error modules as one namespace."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from vllm import exceptions
    from vllm.v1.engine import exceptions as engine_exceptions

    return type("Vllm", (), {**vars(exceptions), **vars(engine_exceptions)})


def wrapped(vllm: Any, cause: Exception) -> Exception:
    error: Exception = vllm.EngineGenerateError()
    error.__cause__ = cause
    return error


def test_a_validation_error_keeps_message_and_parameter_apart(vllm: Any) -> None:
    error = translate(vllm.VLLMValidationError("`top_p` is odd", parameter="top_p", value=7))
    assert (InvalidRequestError, "`top_p` is odd", "top_p") == (type(error), error.message, error.param)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda of: of.VLLMNotFoundError("gone"), InvalidRequestError),
        (lambda of: of.VLLMUnprocessableEntityError("blurred"), InvalidRequestError),
        (lambda of: of.EngineDeadError(), EngineDeadError),
        (lambda of: of.GenerationError(), EngineError),
        (lambda of: of.RetryableRequestError(), OverloadedError),
        (lambda of: of.QueueOverflowError(), OverloadedError),
        (lambda of: of.MaxQueuedTokensError(), OverloadedError),
        (lambda of: of.GracefulHTTPError("busy", HTTPStatus.CONFLICT), EngineError),
        (lambda of: of.EngineGenerateError(), EngineError),
        (lambda of: RuntimeError("secret path"), EngineError),
        (lambda of: ValueError("bad value"), InvalidRequestError),
        (lambda of: NotImplementedError("not yet"), InvalidRequestError),
        (lambda of: type("TemplateError", (Exception,), {})("bad chat"), InvalidRequestError),
    ],
)
@pytest.mark.parametrize("wrap", [False, True], ids=["bare", "wrapped"])
def test_every_error_has_its_counterpart(vllm: Any, make: Any, expected: type[GatewayError], wrap: bool) -> None:
    error = make(vllm)
    assert expected is type(translate(wrapped(vllm, error) if wrap else error))


@pytest.mark.parametrize("error", [ValueError("ours"), TypeError("ours"), type("TemplateError", (Exception,), {})("ours")])
def test_only_a_request_without_output_can_be_refused_by_a_bare_error(vllm: Any, error: Exception) -> None:
    assert [InvalidRequestError, EngineError] == [type(translate(error, accepted=accepted)) for accepted in (False, True)]
    assert "ours" not in translate(error, accepted=True).message


def test_a_refusal_does_not_repeat_what_is_long(vllm: Any) -> None:
    for error in (ValueError("a" * 10_000), vllm.VLLMValidationError("a" * 10_000)):
        assert 500 == len(translate(error).message)


def test_a_clients_mistake_stays_one_after_the_first_output(vllm: Any) -> None:
    assert InvalidRequestError is type(translate(vllm.VLLMValidationError("too long"), accepted=True))


def test_a_fault_of_the_engine_tells_a_client_nothing_of_it(vllm: Any) -> None:
    assert "secret" not in translate(wrapped(vllm, RuntimeError("secret path"))).message


def test_who_is_sent_away_learns_when_to_come_back(vllm: Any) -> None:
    assert 1 == translate(vllm.QueueOverflowError()).retry_after_s


def test_our_own_errors_pass_through(vllm: Any) -> None:
    error = EngineError("x")
    assert error is translate(wrapped(vllm, error))
