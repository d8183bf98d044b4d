from __future__ import annotations

from server.engine.base import EngineRequest, Take
from server.engine.scripted.engine import ScriptedEngine
from server.engine.scripted.rules import Script
from server.errors import EngineError
from server.vocabulary.byte import ByteVocabulary
from server.warm_up import warm_up


async def test_one_token_is_asked_for_under_a_grammar() -> None:
    engine = ScriptedEngine(ByteVocabulary(), Script())
    await warm_up(engine)

    [request] = engine.recorded()["requests"]
    assert (1, True) == (request["sampling"]["max_tokens"], request["grammar"] is not None)
    assert 0 == engine.num_unfinished


async def test_an_engine_that_fails_is_left_to_the_first_request() -> None:
    class Failing(ScriptedEngine):
        async def generate(self, request: EngineRequest, take: Take | None = None):  # type: ignore[no-untyped-def,override]
            raise EngineError("no")
            yield

    await warm_up(Failing(ByteVocabulary(), Script()))
