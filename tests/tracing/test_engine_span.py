"""The engine's span of a request whose tokens go past whoever reads its deltas."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pytest

from server.clock import ManualClock
from server.engine.base import EngineDelta, EngineRequest, Sampling, Take
from server.errors import InsufficientQuotaError
from server.tracing.engine_span import traced
from server.tracing.trace import RequestTrace


class Engine:
    """Offers each of its deltas, but the first, to whoever takes them."""

    async def generate(self, request: EngineRequest, take: Take | None = None) -> AsyncGenerator[EngineDelta, None]:
        yield EngineDelta([1])
        for token_ids in ([2, 3], [4, 5, 6], [7]):
            if take is None or not take(token_ids):
                yield EngineDelta(token_ids)


@pytest.mark.parametrize(("ending", "num_tokens"), [("", 7), ("refused", 7), ("raised", 6)])
async def test_all_tokens_are_counted_also_those_that_end_the_answer(ending: str, num_tokens: int) -> None:
    trace = RequestTrace(ManualClock(), 0.0)
    trace.is_sampled = True

    def take(token_ids: Sequence[int]) -> bool:
        if ending == "raised" and 5 in token_ids:
            raise InsufficientQuotaError("spent")
        return ending != "refused" or 5 not in token_ids

    request = EngineRequest("r", [1, 2], Sampling(max_tokens=9), cache_salt="s")
    try:
        async with aclosing(traced(trace, Engine(), request, 0, take)) as deltas:
            async for _ in deltas:
                pass
    except InsufficientQuotaError:
        assert ending == "raised"

    assert [num_tokens] == [span.attributes["k3gw.engine.output_tokens"] for span in trace.spans]
