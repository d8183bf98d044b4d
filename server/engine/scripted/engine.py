"""An engine that plays scripts: no model, no vLLM, and the same contract.

Role: stands in for vLLM in tests, in benchmarks of the gateway itself, and for client authors who need a certain answer.
Invariant: time passes only through `timer` and turns of the event loop; what is generated depends on script and request alone.
Where it differs from a real engine: a reply waits for its reader instead of running ahead, the prompt is prefilled at once, and
`stats.kv_cache_usage` is nine tenths of the share of the seats taken, so that all of them can be.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from server.engine.base import EngineDelta, EngineRequest, EngineStats, ModelFacts, Take
from server.engine.scripted.answer import Answer
from server.engine.scripted.cache import CachedSequence, PrefixCache
from server.engine.scripted.polite import chat_text, polite_rule
from server.engine.scripted.record import Entry, Record
from server.engine.scripted.reply import Ending, Output, Wait, Word, outputs
from server.engine.scripted.rules import Script
from server.engine.scripted.run import Cut, Run, Seats
from server.engine.scripted.timer import LoopTimer, Timer
from server.errors import ContextLengthError, EngineDeadError, EngineError, InvalidRequestError, MediaError
from server.images import ImageRule
from server.vocabulary.base import Vocabulary

_END_TOKENS = ("<|end_of_msg|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "</s>", "[EOS]")


class ScriptedEngine:
    """Plays the reply of the first rule that matches a request's hints, or a fixed polite one.

    `end_token_ids`: what ends an answer; the first is what `stop` says. Left out: `<|end_of_msg|>`, or what the vocabulary has
    in its place.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        script: Script | None = None,
        *,
        context_length: int = 1_048_576,
        seats: int = 256,
        end_token_ids: tuple[int, ...] | None = None,
        timer: Timer | None = None,
    ) -> None:
        self._vocabulary = vocabulary
        self._script = script or Script()
        self._image_token_id = vocabulary.control.get("<|media_begin|>")
        image_rule = None if self._image_token_id is None else ImageRule()
        end_token_ids = end_token_ids or _usual_end_token_ids(vocabulary)
        self._facts = ModelFacts(context_length, seats, end_token_ids, image_rule)
        self._timer = timer or LoopTimer()
        self._runs: dict[str, Run] = {}
        self._seats = Seats(seats)
        self._cache = PrefixCache()
        self._record = Record()
        self._stats = EngineStats()
        self._died = asyncio.Event()
        self._closed = False

    @property
    def vocabulary(self) -> Vocabulary:
        return self._vocabulary

    @property
    def facts(self) -> ModelFacts:
        return self._facts

    @property
    def stats(self) -> EngineStats:
        return self._stats

    async def generate(self, request: EngineRequest, take: Take | None = None) -> AsyncGenerator[EngineDelta, None]:
        entry = self._record.add(request)
        run, has_begun = self._admit(request, entry), False
        try:
            for placed in request.media:
                (await placed.image.pixels()).close()
            await run.wait_seat()
            answer = self._answer(run, entry)
            for item in outputs(answer.rule.reply, answer.rule.tokens_per_step, self._ending(request)):
                if isinstance(item, Output):
                    await run.rest(answer.interval_s)
                elif isinstance(item, Wait):
                    await run.rest(item.seconds)
                else:
                    await self._fail(item, run)
                if run.cut_by is not None:
                    break
                if isinstance(item, Output):
                    delta = answer.delta(item)
                    if item.finish is not None:
                        self._leave(run, item.finish)
                    elif has_begun and take is not None and take(delta.token_ids):
                        continue
                    has_begun = True
                    yield delta
            if run.cut_by is Cut.ABORT:
                self._leave(run, "abort")
                yield EngineDelta((), finish_reason="abort", num_cached_tokens=entry.num_cached_tokens)
            elif run.cut_by is Cut.DEAD:
                self._leave(run, "dead")
                raise self._dead_error()
        except MediaError:
            self._leave(run, "invalid")
            raise
        except EngineError:
            self._leave(run, "error")
            raise
        finally:
            if entry.end is None:
                self._record.add_abort(request.request_id, "closed", known=True)
                self._leave(run, "closed")

    async def abort(self, request_id: str) -> None:
        run = self._runs.get(request_id)
        self._record.add_abort(request_id, "abort", known=run is not None)
        if run is not None:
            run.cut(Cut.ABORT)

    async def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> list[int]:
        """As in `Engine`, by a fixed template: lines of `role: content`, then `assistant: `. There are no `options` to it."""
        return self._vocabulary.encode(chat_text(messages, tools))

    def recorded(self) -> dict[str, Any]:
        """The last requests and aborts, as JSON types: `{"requests": […], "aborts": […]}`, oldest first."""
        return self._record.as_json()

    def kill(self) -> None:
        """Die: all that runs ends with `EngineDeadError`, and so does all that comes."""
        self._died.set()
        self._cut_all()

    @property
    def dead(self) -> bool:
        return self._died.is_set() or self._closed

    async def wait_dead(self) -> None:
        await self._died.wait()

    @property
    def num_unfinished(self) -> int:
        return len(self._runs)

    async def close(self) -> None:
        self._closed = True
        self._cut_all()

    def _admit(self, request: EngineRequest, entry: Entry) -> Run:
        if self.dead:
            entry.end = "dead"
            raise self._dead_error()
        try:
            self._check(request)
        except InvalidRequestError:
            entry.end = "invalid"
            raise
        run = self._runs[request.request_id] = Run(request, entry, self._timer)
        self._seats.join(run)
        self._count_runs()
        return run

    def _check(self, request: EngineRequest) -> None:
        """Refuse what vLLM refuses. A request id that is still running is refused too: it would be aborted with its namesake."""
        size, sampling = self._vocabulary.size, request.sampling
        if not request.token_ids:
            raise InvalidRequestError("the prompt is empty: give at least one token")
        if len(request.token_ids) >= self._facts.context_length:
            raise ContextLengthError(
                f"the prompt has {len(request.token_ids)} tokens and leaves no room in a context of {self._facts.context_length}"
            )
        ids = (min(request.token_ids), max(request.token_ids), *(sampling.logit_bias or ()))
        outside = next((token_id for token_id in ids if not 0 <= token_id < size), None)
        if outside is not None:
            raise InvalidRequestError(f"token id `{outside}` is outside the vocabulary of {size} tokens")
        if sampling.max_tokens < 1:
            raise InvalidRequestError(f"`max_tokens` is `{sampling.max_tokens}`: give 1 or more")
        if request.grammar is not None:
            try:
                json.loads(request.grammar)
            except ValueError as error:
                raise InvalidRequestError(f"the grammar is no JSON: {error}") from error
        if request.request_id in self._runs:
            raise InvalidRequestError(f"request id `{request.request_id}` is already running: give each request its own")

    def _answer(self, run: Run, entry: Entry) -> Answer:
        request = run.request
        self._count_runs()
        matched = self._script.rule_for(request.hints)
        entry.rule, rule = matched or (None, polite_rule(request, self._vocabulary))
        image_hashes = [placed.image.content_hash for placed in request.media]
        sequence = CachedSequence(self._cache, request.cache_salt, image_hashes, self._image_token_id)
        if run.seated:
            num_found = sequence.prefill(request.token_ids)
            entry.num_cached_tokens = num_found if rule.cached_tokens is None else rule.cached_tokens
            self._stats.num_prefix_queried_tokens += len(request.token_ids)
            self._stats.num_prefix_hit_tokens += entry.num_cached_tokens
        num_logprobs = request.sampling.logprobs
        return Answer(rule, entry, sequence, self._stats, num_logprobs=num_logprobs, vocabulary_size=self._vocabulary.size)

    def _ending(self, request: EngineRequest) -> Ending:
        end_token_ids = self._facts.end_token_ids
        max_tokens = min(request.sampling.max_tokens, self._facts.context_length - len(request.token_ids))
        return Ending(end_token_ids[0], frozenset(end_token_ids), max_tokens, request.sampling)

    async def _fail(self, word: Word, run: Run) -> None:
        """What a reply does instead of going on: fail, take the engine along, or never come back."""
        if run.cut_by is not None:
            return
        if word is Word.ERROR:
            raise EngineError("the script ends this answer with `error`")
        if word is Word.DIE:
            self.kill()
        await run.wait_cut()

    def _leave(self, run: Run, end: str) -> None:
        """Take `run` out of the engine; the first `end` stands."""
        if run.entry.end is not None:
            return
        run.entry.end = end
        del self._runs[run.request.request_id]
        self._seats.leave(run)
        self._count_runs()

    def _cut_all(self) -> None:
        for run in self._runs.values():
            run.cut(Cut.DEAD)

    def _count_runs(self) -> None:
        self._stats.num_running = self._seats.num_seated
        self._stats.num_waiting = len(self._runs) - self._seats.num_seated
        self._stats.kv_cache_usage = 0.9 * self._seats.num_seated / self._facts.seats

    def _dead_error(self) -> EngineDeadError:
        return EngineDeadError("the engine is gone" if self._died.is_set() else "the engine is closed")


def _usual_end_token_ids(vocabulary: Vocabulary) -> tuple[int, ...]:
    for name in _END_TOKENS:
        if name in vocabulary.control:
            return (vocabulary.control[name],)
    raise ValueError(f"the vocabulary has none of {', '.join(_END_TOKENS)}: say which tokens end an answer by `end_token_ids`")
