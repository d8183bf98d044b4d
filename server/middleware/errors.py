"""Errors -> HTTP bodies, before the first byte. (After it, `streaming/sse.py` sends one error frame.)"""

from __future__ import annotations

import orjson
from starlette.responses import Response

from server.errors import DrainingError, GatewayError


def error_response(error: GatewayError) -> Response:
    """The HTTP response of an error, `retry-after` included where it has one."""
    headers = {} if error.retry_after_s is None else {"retry-after": str(error.retry_after_s)}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, DrainingError):
        headers["connection"] = "close"  # over this connection the client would come back to the same replica
    return Response(orjson.dumps(error.body()), status_code=error.status, headers=headers, media_type="application/json")
