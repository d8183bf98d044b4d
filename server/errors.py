"""Everything that can go wrong, as one tree. Code raises; `middleware/errors.py` and the SSE writer render.

    GatewayError
    ├── InvalidRequestError          400  the request is malformed or contradicts itself; `param` names the field
    │   ├── ContextLengthError       400  the prompt leaves no room in the context
    │   └── ExceedsLimitError        400  the prompt is larger than one of the tenant's limits has room for, ever
    ├── AuthenticationError          401  no key, or not one of ours
    ├── PermissionDeniedError        403  a known model that this tenant may not use
    │   └── TenantSuspendedError     403  a tenant that may use nothing for now
    ├── NotFoundError                404  no such path or object
    │   └── ModelNotFoundError       404  no such model
    ├── MethodNotAllowedError        405  the path exists, the method does not
    ├── BodyTooLargeError            413  more bytes than `http.max_body_bytes`
    ├── ConflictError                409  the object is not in a state for this
    ├── MediaError                   422  an image that can't be fetched, or is none that can be decoded; `param` is its part
    ├── HeadersTooLargeError         431  URL and headers are larger than the gateway reads
    ├── RateLimitError               429  the tenant has reached one of its limits; `retry_after_s` says when there is room
    │   └── InsufficientQuotaError   429  the tenant's budget is spent
    ├── DeadlineError                504  the request took longer than `admission.request_timeout_s`
    ├── OverloadedError              503  try again later; `retry_after_s` says when
    │   ├── DrainingError            503  this replica is shutting down
    │   ├── QueueTimeoutError        503  no seat came free within `admission.queue_timeout_s`
    │   ├── LimitsAwayError          503  the limits store can't be reached, and `storage.limits_away` is `closed`
    │   └── EngineDeadError          503  the engine is gone; this process will end
    └── InternalError                500  a fault of ours
        ├── EngineError              500  the engine failed on this request
        └── InvalidToolCallError     502  the model called a tool with arguments that do not fit its schema

Each class carries what an edge needs: `status`, `type` and `code` of the error body, `log_level`, and the `outcome` that
metrics count. Messages name the bad value in backticks and say how to fix it.
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar


class GatewayError(Exception):
    """Base of all errors a client may see. `param` is the path of the offending field, as in `messages[2].content`."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None
    log_level: ClassVar[int] = logging.ERROR
    repeats: ClassVar[bool] = True  # whether a message may have what a client wrote
    outcome: ClassVar[str] = "error"
    reason: str | None = None
    """Why nothing was begun, where the gateway had no room for it: a name for metrics."""

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def for_log(self) -> str:
        """The message as the log may have it, which leaves out all that is quoted in it."""
        return self.message if self.repeats else self.message.replace("`", "")

    def body(self) -> dict[str, Any]:
        """The error object of the API, as clients get it in a body or in a stream's last frame."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class InvalidRequestError(GatewayError):
    """The request is malformed or contradicts itself."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_value"
    log_level = logging.INFO
    outcome = "invalid"


class ContextLengthError(InvalidRequestError):
    """The prompt leaves no room for an answer; the message has both numbers."""

    code = "context_length_exceeded"


class ExceedsLimitError(InvalidRequestError):
    """The prompt is larger than one of the tenant's limits has room for, ever; the message has both numbers."""

    code = "request_exceeds_limit"


class MediaError(GatewayError):
    """An image that can't be fetched, or is none that can be decoded. `param` is its part, as in `messages[0].content[1]`."""

    status = 422
    type = "invalid_request_error"
    code = "invalid_image"
    log_level = logging.INFO
    outcome = "invalid"


class AuthenticationError(GatewayError):
    """No key, or not one of ours. The message never repeats the key."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"
    log_level = logging.INFO
    outcome = "unauthenticated"
    repeats = False


class PermissionDeniedError(GatewayError):
    """The tenant may not use this model."""

    status = 403
    type = "permission_error"
    code = "model_not_allowed"
    log_level = logging.INFO
    outcome = "denied"


class TenantSuspendedError(PermissionDeniedError):
    """The key is right, and its tenant may use nothing for now."""

    code = "tenant_suspended"


class NotFoundError(GatewayError):
    """No such path or object."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"
    log_level = logging.INFO
    outcome = "invalid"


class ModelNotFoundError(NotFoundError):
    """No such model; the message lists those the tenant may use."""

    code = "model_not_found"


class MethodNotAllowedError(GatewayError):
    """The path exists, the method does not."""

    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"
    log_level = logging.INFO
    outcome = "invalid"


class BodyTooLargeError(GatewayError):
    """The body is larger than the gateway reads."""

    status = 413
    type = "invalid_request_error"
    code = "body_too_large"
    log_level = logging.INFO
    outcome = "invalid"


class HeadersTooLargeError(GatewayError):
    """URL and headers are larger than the gateway reads."""

    status = 431
    type = "invalid_request_error"
    code = "headers_too_large"
    log_level = logging.INFO
    outcome = "invalid"


class ConflictError(GatewayError):
    """The object exists, and is not in a state for what was asked."""

    status = 409
    type = "invalid_request_error"
    code = "conflict"
    log_level = logging.INFO
    outcome = "invalid"


class RateLimitError(GatewayError):
    """A limit of the tenant's is reached. `reason` names it in metrics: `requests`, `input_tokens`, `concurrent_requests` …"""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"
    log_level = logging.INFO
    outcome = "limited"
    repeats = False
    reason: str

    def __init__(self, message: str, *, reason: str = "requests", param: str | None = None, retry_after_s: int = 1) -> None:
        super().__init__(message, param=param, retry_after_s=retry_after_s)
        self.reason = reason


class InsufficientQuotaError(RateLimitError):
    """The tenant's budget for the day or the month is spent, before the work or during it."""

    type = "insufficient_quota"
    code = "insufficient_quota"
    outcome = "over_budget"

    def __init__(self, message: str, *, reason: str = "budget", param: str | None = None, retry_after_s: int = 60) -> None:
        super().__init__(message, reason=reason, param=param, retry_after_s=retry_after_s)


class DeadlineError(GatewayError):
    """The request took longer than any may."""

    status = 504
    code = "deadline_exceeded"
    log_level = logging.WARNING
    outcome = "timeout"


class OverloadedError(GatewayError):
    """Nothing is wrong with the request; try again in `retry_after_s`, which is always set."""

    status = 503
    type = "server_error"
    code = "overloaded"
    log_level = logging.WARNING
    outcome = "rejected"

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int = 5) -> None:
        super().__init__(message, param=param, retry_after_s=retry_after_s)
        self.reason: str = self.code or "overloaded"


class DrainingError(OverloadedError):
    """This replica is shutting down and takes no new work."""

    code = "draining"


class QueueTimeoutError(OverloadedError):
    """The request waited for a seat as long as one may, and got none."""

    code = "queue_timeout"


class LimitsAwayError(OverloadedError):
    """Whether the tenant is within its limits can't be known now, and the gateway is set to refuse then."""

    code = "limits_unavailable"
    log_level = logging.ERROR


class EngineDeadError(OverloadedError):
    """The engine process is gone. It does not come back in this process."""

    code = "engine_dead"
    log_level = logging.ERROR
    outcome = "engine_dead"


class InternalError(GatewayError):
    """A fault of ours. The client learns that it happened, the log learns why."""

    code = "internal_error"

    @classmethod
    def of(cls, cause: Exception) -> InternalError:
        """What the client is told of an exception that nobody foresaw; the cause goes to the log."""
        error = cls("the gateway failed on this request; it has been logged")
        error.__cause__ = cause
        return error


class EngineError(InternalError):
    """The engine failed on this request and lives on."""

    code = "engine_error"


class InvalidToolCallError(InternalError):
    """The model's call does not fit the tool it calls, and the model's `tool_call_policy` does not deliver such calls.

    `what` was wrong repeats what the model said to this client: it is for the client, not for the log.
    """

    status = 502
    code = "invalid_tool_call"
    log_level = logging.WARNING
    outcome = "invalid_tool_call"

    def __init__(self, message: str, *, what: str = "") -> None:
        self._for_log = message
        cure = "ask again, or have the model's `tool_call_policy` set to `report`"
        super().__init__(f"{message}: {what}; {cure}" if what else f"{message}; {cure}")

    @property
    def for_log(self) -> str:
        return self._for_log
