"""The engine of production: vLLM's `AsyncLLM` in this process, its engine core in another.

Role: step 6 of a request. Prompts go in as rendered token ids, deltas come out as vLLM makes them: one conversion each, no task
and no queue of ours. vLLM merges what a slow reader has not taken into one delta, so a request holds no more than its own tokens.
Invariant: whatever ends `generate` (the last delta, an error, a reader that leaves) leaves nothing of the request in vLLM.
Must not: import vllm before the environment of the profile is set; so vllm is imported by what builds an engine.
Source: vllm/v1/engine/async_llm.py (0.32 and 0.33).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server.engine.base import EngineDelta, EngineRequest, EngineStats, ModelFacts, Take
from server.engine.profiles import Profile
from server.engine.vllm_direct import Handover
from server.engine.vllm_errors import translate
from server.engine.vllm_facts import model_facts
from server.engine.vllm_prompts import LongPrompts
from server.errors import ContextLengthError, EngineDeadError, GatewayError, InvalidRequestError
from server.vocabulary.base import Vocabulary
from server.vocabulary.load import load

if TYPE_CHECKING:
    from server.engine.vllm_media import VllmMedia
    from server.engine.vllm_start import Attachment

DEATH_POLL_INTERVAL_S = 0.2
SHUTDOWN_TIMEOUT_S = 5.0


def _silent(line: str) -> None:
    """No progress wanted."""


class _AbortedError(Exception):
    """The request was aborted before vLLM heard of it."""


class VllmEngine:
    """`Engine` over an `AsyncLLM`, which it owns from here on.

    `stats` is kept up to date by the statistics hook that `llm` was built with; `open` arranges that. `media`: how it takes
    images; None where it takes none.
    """

    def __init__(
        self,
        llm: Any,
        vocabulary: Vocabulary,
        stats: EngineStats | None = None,
        answer_bounds: Mapping[str, int] | None = None,
        media: VllmMedia | None = None,
    ) -> None:
        from server.engine import vllm_requests

        self._convert = vllm_requests
        self._llm = llm
        self._vocabulary = vocabulary
        self._stats = stats or EngineStats()
        self._media = media
        self._long = LongPrompts(llm.renderer)
        end_id = llm.renderer.get_eos_token_id()
        llm.renderer.get_eos_token_id = lambda: end_id  # vLLM looks it up in its tokeniser's pool for every request
        self._facts = model_facts(llm, answer_bounds or {}, None if media is None else media.rule)
        self._speculates = llm.vllm_config.speculative_config is not None
        self._is_traced = llm.vllm_config.observability_config.otlp_traces_endpoint is not None
        self._request_ids: set[str] = set()
        self._aborted_ids: set[str] = set()  # of `_request_ids`, some that vLLM may not have yet
        self._closing: asyncio.Future[None] | None = None

    @classmethod
    async def open(
        cls,
        profile: Profile,
        model_path: Path,
        *,
        model_name: str | None = None,
        progress: Callable[[str], None] = _silent,
        attachment: Attachment | None = None,
    ) -> VllmEngine:
        """Start vLLM on the model in `model_path`; takes tens of seconds, of which `progress` tells.

        `attachment`: to an engine core that runs elsewhere; left out, one is started. `model_name` is the label of vLLM's own
        metrics; left out: the folder's name. Raises `ProfileError` for a profile that vLLM or we
        refuse, `FileNotFoundError` and `ValueError` for a folder without a readable vocabulary.
        """
        from server.engine.vllm_start import start

        vocabulary = load(model_path)
        stats = EngineStats()
        llm = await start(profile, model_path, model_name or model_path.name, stats, progress, attachment)
        from server.engine.vllm_media import open_media

        return cls(llm, vocabulary, stats, profile.answer_bounds, await open_media(llm))

    @property
    def vocabulary(self) -> Vocabulary:
        return self._vocabulary

    @property
    def facts(self) -> ModelFacts:
        return self._facts

    @property
    def stats(self) -> EngineStats:
        if not self.num_unfinished:
            # vLLM sends figures with each step's tokens, so an abort of the last request would leave them standing.
            self._stats.num_running = self._stats.num_waiting = 0
            self._stats.kv_cache_usage = 0.0
        return self._stats

    async def generate(self, request: EngineRequest, take: Take | None = None) -> AsyncGenerator[EngineDelta, None]:
        outputs, num_top, accepted, ended = self._start(request), request.sampling.logprobs, False, False
        handover = Handover(take)
        try:
            async for output in outputs:
                if not accepted:
                    accepted = True
                    handover.begin(self._llm, request.request_id)
                handover.is_awaited = False
                completion = output.outputs[0]
                if completion.finish_reason is not None:
                    self._forget(request.request_id)
                    ended = True
                    yield self._convert.last_delta(output, num_top, self._facts.end_token_ids)
                elif completion.token_ids:
                    logprobs = None if num_top is None else self._convert.token_logprobs(completion, num_top)
                    yield EngineDelta(completion.token_ids, logprobs, num_cached_tokens=output.num_cached_tokens or 0)
                handover.is_awaited = True
        except _AbortedError:
            self._forget(request.request_id)
            ended = True
            yield EngineDelta([], finish_reason="abort")
        except GatewayError:
            raise
        except Exception as error:
            if not handover.has_failed:
                raise self._translated(error, accepted=accepted) from error
        finally:
            handover.end()
            if not ended:  # else the id may be another request's by now
                self._forget(request.request_id)
            await outputs.aclose()
        handover.raise_failure()

    def _forget(self, request_id: str) -> None:
        self._request_ids.discard(request_id)
        self._aborted_ids.discard(request_id)

    def _start(self, request: EngineRequest) -> Any:
        """vLLM's outputs of `request`; the engine hears of it at the first `__anext__`, or later where much is to be done."""
        if self.dead:
            raise self._dead_error()
        self._check(request)
        try:
            if self._media is not None and request.media:
                outputs: Any = self._outputs_with_media(self._media, request)
            elif self._long.has(request.token_ids):
                outputs = self._long.checked(request.token_ids, lambda: self._outputs_now(request))
            else:
                outputs = self._outputs(request, self._convert.engine_input(request))
        except Exception as error:
            raise translate(error) from error
        self._request_ids.add(request.request_id)
        return outputs

    def _outputs(self, request: EngineRequest, prompt: Any) -> Any:  # `prompt`: as vLLM's rendered inputs
        return self._llm.generate(
            prompt,
            self._convert.sampling_params(request),
            request.request_id,
            trace_headers=request.trace_headers if self._is_traced else None,
            priority=request.priority,
            reasoning_ended=request.reasoning_ended,
        )

    def _outputs_now(self, request: EngineRequest) -> Any:
        self._check_still_wanted(request)
        return self._outputs(request, self._convert.engine_input(request))

    def _check_still_wanted(self, request: EngineRequest) -> None:
        if request.request_id in self._aborted_ids:  # while it was made ready
            raise _AbortedError
        if self.dead:
            raise self._dead_error()

    async def _outputs_with_media(self, media: VllmMedia, request: EngineRequest) -> AsyncGenerator[Any, None]:
        """As `_outputs`, once the images are ready.

        The engine core keeps the images it was sent, and vLLM here keeps account of them, but not always the same: a request
        that was told to be known and is not comes back failed, and is sent once more with its images.
        """
        if self._long.has(request.token_ids):
            await self._long.check(request.token_ids)
        for resend in (False, True):
            prompt = await media.engine_input(request, resend=resend)
            self._check_still_wanted(request)
            async with aclosing(self._outputs(request, prompt)) as outputs:
                first = await anext(outputs)
                if first.outputs[0].finish_reason == "error" and not resend:
                    continue
                prompt.clear()  # vLLM has it until the last output, and its images are with the engine core
                yield first
                async for output in outputs:
                    yield output
            return

    def _check(self, request: EngineRequest) -> None:
        """Refuse what vLLM would not refuse, or not as clearly."""
        num_tokens, context_length = len(request.token_ids), self._facts.context_length
        if num_tokens >= context_length:
            raise ContextLengthError(f"the prompt has {num_tokens} tokens and leaves no room in a context of {context_length}")
        if self._speculates:
            for name, value in (("min_p", request.sampling.min_p), ("logit_bias", request.sampling.logit_bias)):
                if value:
                    raise InvalidRequestError(f"`{name}` is refused: the model is served with speculation; remove it", param=name)
        if request.media and self._media is None:
            raise InvalidRequestError("the loaded model takes no images; send text only")
        if self._media is not None and len(request.media) > self._media.most_images:
            most = self._media.most_images
            raise InvalidRequestError(f"the prompt has {len(request.media)} images and the engine takes {most}; send fewer")
        if request.request_id in self._request_ids:
            raise InvalidRequestError(f"request id `{request.request_id}` is already running; give each request its own")

    async def abort(self, request_id: str) -> None:
        if request_id in self._request_ids:
            self._aborted_ids.add(request_id)
            await self._llm.abort(request_id)

    async def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> list[int]:
        from vllm.renderers import ChatParams

        template_options = {**options, "add_generation_prompt": True, "tools": list(tools) or None}
        try:
            _, (prompt,) = await self._llm.renderer.render_chat_async(
                [[_with_own_calls(message) for message in messages]], ChatParams(chat_template_kwargs=template_options)
            )
        except Exception as error:
            raise self._translated(error) from error
        return list(prompt["prompt_token_ids"])

    @property
    def dead(self) -> bool:
        return self._closing is not None or bool(self._llm.errored)

    async def wait_dead(self) -> None:
        """As in `Engine`; vLLM watches its process in a thread and only sets a flag, so it takes up to 0.2 s longer."""
        while self._closing is not None or not self._llm.errored:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(DEATH_POLL_INTERVAL_S)

    @property
    def num_unfinished(self) -> int:
        # Not vLLM's own count: it keeps the requests of an engine that has died.
        return len(self._request_ids)

    async def close(self) -> None:
        """As in `Engine`, within some five seconds; a second call waits for the first."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._shut_down())
        await asyncio.shield(self._closing)

    async def _shut_down(self) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError as VllmEngineDeadError

        handler = self._llm.output_handler
        if handler is not None:
            # First, so that it does not report the end of its own engine as a failure.
            handler.cancel()
            with suppress(asyncio.CancelledError):
                await handler
        self._llm.output_processor.propagate_error(VllmEngineDeadError())
        # Its processes get the time to end by themselves and are killed after it.
        await asyncio.to_thread(self._llm.shutdown, SHUTDOWN_TIMEOUT_S)
        self._llm = None  # its destructor fails in an interpreter that is shutting down

    def _translated(self, error: Exception, *, accepted: bool = False) -> GatewayError:
        return self._dead_error() if self._closing is not None else translate(error, accepted=accepted)

    def _dead_error(self) -> EngineDeadError:
        if self._closing is not None:
            return EngineDeadError("the engine is closed")
        return EngineDeadError("the engine has died; this replica takes no more requests")


def _with_own_calls(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """`message` as vLLM may have it: it puts the parsed arguments of each tool call in the place of their text."""
    if not message.get("tool_calls"):
        return message
    return {**message, "tool_calls": [{**call, "function": dict(call["function"])} for call in message["tool_calls"]]}
