"""Bodies become requests: long ones in a thread, and what is wrong with them is said as ever."""

from __future__ import annotations

import base64
import json
import random
import threading
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from server.body import MIN_LIFTED_BYTES, Body, read_body
from server.errors import InvalidRequestError
from server.pauses import go_on
from server.protocol import chat, decoding
from server.protocol.chat_body import LONG_BYTES, BodyParser

USER = {"role": "user", "content": "hi"}
URL = f"data:image/png;base64,{base64.b64encode(random.Random(1).randbytes(MIN_LIFTED_BYTES)).decode()}"
SHORT = [USER]
LONG = [{"role": "user", "content": "word " * LONG_BYTES}]


def json_of(messages: list[dict[str, Any]], **fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


async def body_of(messages: list[dict[str, Any]], **fields: Any) -> Body:
    async def chunks() -> AsyncGenerator[bytes, None]:
        yield json_of(messages, **fields)

    return await read_body(chunks())


@pytest.mark.parametrize(("messages", "off_the_loop"), [(SHORT, False), (LONG, True)], ids=["short", "long"])
async def test_a_long_body_is_parsed_beside_the_loop(
    messages: list[dict[str, Any]], off_the_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    check = chat.ChatRequest.check

    def watched(request: chat.ChatRequest) -> None:
        threads.append(threading.current_thread())
        check(request)

    monkeypatch.setattr(chat.ChatRequest, "check", watched)
    parsed = await BodyParser().parse(await body_of(messages), ignore_reserved=False)
    assert (messages, []) == (parsed.wanted.messages, parsed.sources)
    assert [off_the_loop] == [thread is not threading.current_thread() for thread in threads]


@pytest.mark.parametrize("messages", [SHORT, LONG], ids=["short", "long"])
async def test_a_mistake_is_said_wherever_it_is_found(messages: list[dict[str, Any]]) -> None:
    for more, fields in (([], {"temperature": 9}), ([{"role": "boss"}], {}), ([], {"cache_salt": "x"})):
        with pytest.raises(InvalidRequestError) as expected:
            chat.parse(json_of([*messages, *more], **fields))
        with pytest.raises(InvalidRequestError) as found:
            await BodyParser().parse(await body_of([*messages, *more], **fields), ignore_reserved=False)
        assert (expected.value.message, expected.value.param) == (found.value.message, found.value.param)


@pytest.mark.parametrize("messages", [SHORT, LONG], ids=["short", "long"])
async def test_reserved_fields_may_be_ignored(messages: list[dict[str, Any]]) -> None:
    parsed = await BodyParser().parse(await body_of(messages, priority=3), ignore_reserved=True)
    assert messages == parsed.wanted.messages


@pytest.mark.parametrize("before", [SHORT, LONG], ids=["short", "long"])
async def test_images_are_found_and_what_is_none_is_put_back(before: list[dict[str, Any]]) -> None:
    seen = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": URL}}]}
    body = await body_of([*before, seen, {"role": "user", "content": URL}])
    assert 2 == len(body.payloads)
    parsed = await BodyParser().parse(body, ignore_reserved=False)
    assert URL == parsed.wanted.messages[-1].get("content")
    [source] = parsed.sources
    assert (f"messages[{len(before)}].content[0]", True) == (source.param, source.url in body.payloads)
    assert URL.partition(",")[2].encode() == body.payloads[source.url].read()
    body.close()


async def test_a_body_whose_images_are_none_holds_no_memory_any_more() -> None:
    body = await body_of([{"role": "user", "content": URL}])
    await BodyParser().parse(body, ignore_reserved=False)
    with pytest.raises(ValueError, match="closed"):
        body.payloads[next(iter(body.payloads))].read()


@given(
    pieces=st.lists(st.sampled_from([b"[", b"{", b'":', b":", b",", b'"', b"x", b" "]), max_size=60),
    limits=st.fixed_dictionaries({piece: st.integers(0, 8) for piece in (b"[", b"{", b'":', b",")}),
    step=st.integers(1, 9),
)
@example(pieces=[b'":'] * 9, limits={b"[": 0, b"{": 0, b'":': 8, b",": 0}, step=1)
def test_marks_are_counted_as_if_one_by_one(pieces: list[bytes], limits: dict[bytes, int], step: int) -> None:
    body = b"".join(pieces)
    expected = any(body.count(piece) > most for piece, most in limits.items())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "_LIMITS", limits)
        patch.setattr(decoding, "_STEP_BYTES", step)
        assert expected == decoding._may_have_too_many(body, go_on)


def test_counting_lets_others_run() -> None:
    pauses: Counter[str] = Counter()
    chat.parse(json_of(LONG), pause=lambda: pauses.update(["pause"]))
    assert pauses["pause"] >= len(json_of(LONG)) // decoding._STEP_BYTES
