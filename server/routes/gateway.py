"""The running gateway of a request."""

from __future__ import annotations

from fastapi import Request

from server.gateway import Gateway


def gateway_of(request: Request) -> Gateway:
    """The gateway that this request came to."""
    gateway: Gateway = request.app.state.gateway
    return gateway
