"""From start to stop: what fails beside the requests ends the gateway, and in order."""

from __future__ import annotations

import threading

import httpx

from server.engine.scripted.engine import ScriptedEngine
from server.vocabulary.byte import ByteVocabulary
from tests.conftest import LiveGateway


def test_background_work_that_fails_ends_the_gateway_in_order() -> None:
    gateway, has_failed = LiveGateway(lambda: ScriptedEngine(ByteVocabulary())), threading.Event()

    async def fails() -> None:
        await gateway.gateway.opened.wait()
        raise OSError("the disk is gone")

    gateway.gateway.background.append(fails)
    gateway.gateway.on_failure = has_failed.set
    gateway.start()
    try:
        assert has_failed.wait(10)
        assert isinstance(gateway.gateway.failure, OSError)
        assert httpx.get(f"{gateway.url}/ready").status_code == 200, "what is under way needs the engine until it has ended"
    finally:
        gateway.stop()
