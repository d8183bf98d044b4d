"""Lower bounds of what a server in Python costs: as little as can be written by hand.

`AsgiFrontend` streams what `AsyncLLM` says with constant JSON around each escaped text: no model of a request or a chunk, no
middleware, no limits, no parser, no usage. `IdleFrontend` has no engine, either: a chunk, and then nothing.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import AsyncGenerator
from json.encoder import encode_basestring_ascii
from typing import Any

from server.vocabulary.base import Vocabulary

Message = dict[str, Any]


async def _answer_lifespan(receive: Any, send: Any) -> None:
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return


async def _body_of(receive: Any) -> Any:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return json.loads(body)


def _start(content_type: bytes) -> Message:
    return {"type": "http.response.start", "status": 200, "headers": [(b"content-type", content_type)]}


class AsgiFrontend:
    """Over an `AsyncLLM`."""

    def __init__(self, llm: Any, vocabulary: Vocabulary, model: str) -> None:
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        self._llm = llm
        self._encode = vocabulary.encode
        self._model = model
        self._serial = itertools.count(1)
        self._input = tokens_input
        self._params = SamplingParams
        self._delta = RequestOutputKind.DELTA

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await _answer_lifespan(receive, send)
            return
        body = await _body_of(receive)
        if body.get("stream"):
            await send(_start(b"text/event-stream"))
            async for chunk in self._chunks(body):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        else:
            data = await self._whole(body)
            await send(_start(b"application/json"))
            await send({"type": "http.response.body", "body": data})

    def _outputs(self, body: Any) -> tuple[str, Any]:
        text = "".join(f"{message['role']}: {message['content']}\n" for message in body["messages"])
        request_id = f"chatcmpl-{next(self._serial)}"
        params = self._params(temperature=0, max_tokens=body["max_tokens"], output_kind=self._delta, skip_clone=True)
        return request_id, self._llm.generate(self._input(self._encode(text)), params, request_id)

    async def _chunks(self, body: Any) -> AsyncGenerator[bytes, None]:
        request_id, outputs = self._outputs(body)
        head = (
            f'data: {{"id":"{request_id}","object":"chat.completion.chunk","created":{int(time.time())},"model":"{self._model}",'
            '"choices":[{"index":0,"delta":{'
        ).encode()
        yield head + b'"role":"assistant","content":""},"finish_reason":null}]}\n\n'
        async for output in outputs:
            completion = output.outputs[0]
            text = encode_basestring_ascii(completion.text).encode()
            yield b'%s"content":%s},"finish_reason":null}]}\n\n' % (head, text)
        yield b'%s},"finish_reason":"length"}]}\n\n' % head
        yield b"data: [DONE]\n\n"

    async def _whole(self, body: Any) -> bytes:
        request_id, outputs = self._outputs(body)
        text = "".join([output.outputs[0].text async for output in outputs])
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}
        usage = {"prompt_tokens": 1, "completion_tokens": body["max_tokens"], "total_tokens": 1 + body["max_tokens"]}
        answer = {"id": request_id, "object": "chat.completion", "created": int(time.time()), "model": self._model}
        return json.dumps({**answer, "choices": [choice], "usage": usage}).encode()


class IdleFrontend:
    """One chunk, and then nothing until the client leaves."""

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await _answer_lifespan(receive, send)
            return
        await _body_of(receive)
        await send(_start(b"text/event-stream"))
        await send({"type": "http.response.body", "body": b'data: {"choices":[]}\n\n', "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
