"""vLLM's errors, as ours.

Role: the one table between the two trees. Which of vLLM's errors a client caused, vLLM says itself by their base classes; errors
of Python that escape from its checks of a request are the client's too, as in vLLM's own server. They are that only before the
request's first output: afterwards there is nothing left to check, and such an error is a fault, vLLM's or ours.
Source: vllm/exceptions.py, vllm/entrypoints/serve/exception_handling/error_response.py (0.32 and 0.33).
"""

from __future__ import annotations

from http import HTTPStatus

from server.errors import EngineDeadError, EngineError, GatewayError, InvalidRequestError, OverloadedError

_RETRY_AFTER_S = 1
_MAX_MESSAGE_CHARS = 500  # they may repeat what the client sent
_RAW_REFUSALS = (ValueError, TypeError, OverflowError, NotImplementedError)


def translate(error: BaseException, *, accepted: bool = False) -> GatewayError:
    """What a client is told of `error`, which came out of vLLM. `accepted`: the request had an output before."""
    from vllm.exceptions import GracefulHTTPError, RetryableRequestError, VLLMClientError
    from vllm.v1.engine.exceptions import EngineDeadError as VllmEngineDeadError
    from vllm.v1.engine.exceptions import EngineGenerateError

    if isinstance(error, EngineGenerateError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, GatewayError):
        return error
    if isinstance(error, VllmEngineDeadError):
        return EngineDeadError("the engine has died; this replica takes no more requests")
    if isinstance(error, VLLMClientError):
        # `str` of these repeats parameter and value, which may be long and is told apart.
        message = str(error.args[0]) if error.args else str(error)
        return InvalidRequestError(message[:_MAX_MESSAGE_CHARS], param=getattr(error, "parameter", None))
    if isinstance(error, RetryableRequestError):
        return OverloadedError(str(error), retry_after_s=_RETRY_AFTER_S)
    if isinstance(error, GracefulHTTPError) and error.http_status == HTTPStatus.SERVICE_UNAVAILABLE:
        return OverloadedError(error.message, retry_after_s=_RETRY_AFTER_S)
    if not accepted and (isinstance(error, _RAW_REFUSALS) or _is_template_error(error)):
        message = str(error) or f"the engine refuses the request: {type(error).__name__}"
        return InvalidRequestError(message[:_MAX_MESSAGE_CHARS])
    return EngineError("the engine failed on this request")


def _is_template_error(error: BaseException) -> bool:
    """Whether a chat template refused its messages. By name: jinja2 is vLLM's dependency, not ours."""
    return any(base.__name__ == "TemplateError" for base in type(error).__mro__)
