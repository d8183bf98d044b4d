"""What a fresh engine has to do once, done before the first request.

Role: composition, between opening an engine and serving with it. Compiling a grammar means a pass over the vocabulary for each
kind of text in it and for each length that is counted (K3's has 163,840 tokens: some 20 s of a core, which the engine spreads
over eight), and the engine keeps what it has found.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import structlog

from server.engine.base import Engine, EngineRequest, Sampling
from server.errors import GatewayError
from server.grammar.base import Bounds, Shape
from server.grammar.factory import GrammarFactory

log = structlog.get_logger(__name__)


def _some_of_each(bounds: Bounds) -> dict[str, Any]:
    """A tool with all kinds of text, at all lengths."""
    counted = {"type": "string", "minLength": 1, "maxLength": bounds.counted_chars}
    properties = {
        "text": {"type": "string"},
        "name": counted,
        "number": {"type": "number"},
        "count": {"type": "integer"},
        "flag": {"type": "boolean"},
        "list": {"type": "array", "items": counted},
        "any": {},
    }
    return {"type": "function", "function": {"name": "warm_up", "parameters": {"type": "object", "properties": properties}}}


async def warm_up(engine: Engine) -> None:
    """One token under a grammar with all kinds of text. What goes wrong is logged: requests will meet it again, or not."""
    bounds = Bounds(**engine.facts.answer_bounds)
    grammar = GrammarFactory("kimi_k3", engine.vocabulary, bounds).make(
        Shape(tools=[_some_of_each(bounds)], response_format={"type": "json_object"})
    )
    request = EngineRequest(
        request_id="warm-up",
        token_ids=engine.vocabulary.encode("Hi"),
        sampling=Sampling(max_tokens=1),
        cache_salt="warm-up",
        grammar=grammar.structural_tag if grammar else None,
        reasoning_ended=True,
    )
    try:
        async with aclosing(engine.generate(request)) as deltas:
            async for _ in deltas:
                pass
    except GatewayError as error:
        log.warning("warm_up_failed", error=str(error))
