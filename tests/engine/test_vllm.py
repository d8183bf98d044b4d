"""The engine over an `AsyncLLM` of paper: what a real one does not do on demand. Needs vLLM's classes, but no engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from server.engine import vllm as module
from server.engine.base import EngineDelta, EngineRequest, Sampling, Speculation
from server.engine.vllm import VllmEngine
from server.errors import EngineDeadError, EngineError, InvalidRequestError
from server.vocabulary.byte import ByteVocabulary

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

END, OTHER_END = 5, 6


def output(
    token_ids: list[int], finish: str | None = None, stop: int | None = None, cached: int | None = 0, spec: Any = None
) -> Any:
    completion = SimpleNamespace(
        token_ids=token_ids, finish_reason=finish, stop_reason=stop, logprobs=None, spec_decode_metrics=spec
    )
    return SimpleNamespace(outputs=[completion], num_cached_tokens=cached)


class PaperLlm:
    """Plays `outputs`; an exception among them is raised, None waits for an error from outside."""

    def __init__(self, outputs: list[Any]) -> None:
        self.played = outputs
        self.calls: list[tuple[Any, ...]] = []
        self.num_left = 0
        self.num_validated = 0
        self.validating, self.may_validate = threading.Semaphore(0), threading.Event()
        self.may_validate.set()
        self.errored = False
        self.output_handler: asyncio.Task[None] | None = None
        self.output_processor = self
        self.renderer = SimpleNamespace(get_eos_token_id=lambda: END, validate_token_ids=self._validate)
        self.vllm_config = SimpleNamespace(
            scheduler_config=SimpleNamespace(max_num_seqs=4),
            parallel_config=SimpleNamespace(data_parallel_size=2),
            speculative_config=None,
            observability_config=SimpleNamespace(otlp_traces_endpoint=None),
        )
        self.model_config = SimpleNamespace(
            max_model_len=100,
            try_get_generation_config=lambda: {"eos_token_id": [END, OTHER_END]},
            get_diff_sampling_param=lambda: {"temperature": 0.6, "max_tokens": 7},
        )
        self._errors: asyncio.Queue[Exception] = asyncio.Queue()

    def _validate(self, token_ids: Sequence[int], **_: Any) -> None:
        self.num_validated += len(token_ids)
        self.validating.release()
        assert self.may_validate.wait(10)
        if max(token_ids) > 255:
            from vllm.exceptions import VLLMValidationError

            raise VLLMValidationError("out of vocabulary")

    async def generate(self, prompt: Any, params: Any, request_id: str, **options: Any) -> AsyncGenerator[Any, None]:
        self.calls.append((prompt, params, request_id, options))
        try:
            for item in self.played:
                if item is None:
                    raise await self._errors.get()
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.num_left += 1

    def propagate_error(self, error: Exception) -> None:
        self._errors.put_nowait(error)

    def shutdown(self, timeout: float) -> None:
        self.calls.append(("shutdown", timeout))


MakeEngine = Callable[..., tuple[VllmEngine, PaperLlm]]


@pytest.fixture
def make_engine() -> MakeEngine:
    pytest.importorskip("vllm", reason="vLLM is not installed")

    def make(*outputs: Any) -> tuple[VllmEngine, PaperLlm]:
        llm = PaperLlm(list(outputs))
        return VllmEngine(llm, ByteVocabulary()), llm

    return make


def request(**given: Any) -> EngineRequest:
    sampling = Sampling(**{"max_tokens": 9, **given.pop("sampling", {})})
    return EngineRequest(**{"request_id": "r", "token_ids": (1, 2), "cache_salt": "salt", **given}, sampling=sampling)


async def ask(engine: VllmEngine, **given: Any) -> list[EngineDelta]:
    return [delta async for delta in engine.generate(request(**given))]


async def test_facts_come_from_the_model_and_its_generation_config(make_engine: MakeEngine) -> None:
    facts = make_engine()[0].facts
    assert (100, 8, (END, OTHER_END)) == (facts.context_length, facts.seats, facts.end_token_ids)
    assert {"temperature": 0.6} == facts.default_sampling  # `max_tokens` is not a matter of taste


async def test_deltas_are_vllms_outputs_without_the_empty_ones(make_engine: MakeEngine) -> None:
    spec = SimpleNamespace(histogram=[2, 1, 3], num_draft_tokens=12)
    engine, _ = make_engine(
        output([7], cached=None), output([]), output([8, 9], cached=32), output([], "length", cached=32, spec=spec)
    )
    expected = [
        EngineDelta([7]),
        EngineDelta([8, 9], num_cached_tokens=32),
        EngineDelta([], finish_reason="length", num_cached_tokens=32, speculation=Speculation(6, 12, 7)),
    ]
    assert expected == await ask(engine)


@pytest.mark.parametrize(
    ("finish", "stop", "expected"),
    [
        ("stop", None, ("stop", None)),
        ("stop", OTHER_END, ("stop", None)),
        ("stop", 42, ("stop", 42)),
        ("length", None, ("length", None)),
        ("abort", None, ("abort", None)),
        ("repetition", None, ("length", None)),
    ],
)
async def test_endings(make_engine: MakeEngine, finish: str, stop: int | None, expected: tuple[str, int | None]) -> None:
    engine, _ = make_engine(output([7], finish, stop))
    (delta,) = await ask(engine)
    assert expected == (delta.finish_reason, delta.stop_reason)


async def test_a_request_the_engine_gave_up_on_is_an_error(make_engine: MakeEngine) -> None:
    engine, llm = make_engine(output([7]), output([], "error"))
    with pytest.raises(EngineError):
        await ask(engine)
    assert (0, 1, False) == (engine.num_unfinished, llm.num_left, engine.dead)


async def test_an_error_before_the_first_output_is_a_refusal_and_a_fault_after_it(make_engine: MakeEngine) -> None:
    engine, _ = make_engine(ValueError("`top_p` is odd"))
    with pytest.raises(InvalidRequestError, match="odd"):
        await ask(engine)
    engine, _ = make_engine(output([7]), ValueError("secret"))
    with pytest.raises(EngineError, match="failed on this request") as caught:
        await ask(engine)
    assert "secret" == str(caught.value.__cause__)


async def test_an_output_that_we_cannot_read_is_no_fault_of_the_client(make_engine: MakeEngine) -> None:
    engine, llm = make_engine(output([7]))  # log probabilities were asked for, and are not there
    with pytest.raises(EngineError):
        await ask(engine, sampling={"logprobs": 1})
    assert (0, 1) == (engine.num_unfinished, llm.num_left)


async def test_a_chat_is_rendered_without_a_change_to_it(make_engine: MakeEngine) -> None:
    engine, llm = make_engine()
    asked: list[Any] = []

    async def render_chat_async(conversations: Any, params: Any) -> Any:
        asked.append(params.chat_template_kwargs)
        for message in conversations[0]:
            for call in message.get("tool_calls", ()):
                call["function"]["arguments"] = {"parsed": True}
        return None, [{"prompt_token_ids": [1, 2]}]

    llm.renderer.render_chat_async = render_chat_async
    messages = [{"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]
    assert [1, 2] == await engine.render_chat(messages, (), {"thinking": False})
    assert "{}" == messages[0]["tool_calls"][0]["function"]["arguments"]  # type: ignore[index]
    assert [{"thinking": False, "add_generation_prompt": True, "tools": None}] == asked


async def test_vllm_gets_the_request_as_it_is(make_engine: MakeEngine) -> None:
    engine, llm = make_engine(output([7], "stop"))
    sampling = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "seed": 3,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.1,
        "logit_bias": {4: -1.0},
        "logprobs": None,
        "stop_token_ids": [8],
        "ignore_eos": True,
        "max_tokens": 11,
    }
    await ask(engine, sampling=sampling, priority=-2, grammar="{}", reasoning_ended=False)
    prompt, params, request_id, options = llm.calls[0]
    assert {"type": "token", "prompt_token_ids": [1, 2], "cache_salt": "salt"} == prompt
    assert sampling == {name: getattr(params, name) for name in sampling}
    assert ("{}", False, True, "DELTA") == (
        params.structured_outputs.structural_tag,
        params.detokenize,
        params.skip_clone,
        params.output_kind.name,
    )
    assert ("r", {"priority": -2, "reasoning_ended": False, "trace_headers": None}) == (request_id, options)


async def test_leaving_closes_vllms_generator_at_once(make_engine: MakeEngine) -> None:
    engine, llm = make_engine(output([7]), output([8]))
    generation = engine.generate(request())
    await anext(generation)
    await generation.aclose()
    assert (1, 0) == (llm.num_left, engine.num_unfinished)


async def test_an_id_is_free_again_with_the_last_delta(make_engine: MakeEngine) -> None:
    engine, llm = make_engine(output([7], "stop"))
    first = engine.generate(request())
    await anext(first)
    llm.played = [output([7]), output([8], "stop")]
    second = engine.generate(request())
    await anext(second)
    await first.aclose()
    assert 1 == engine.num_unfinished
    await second.aclose()
    assert 0 == engine.num_unfinished


async def test_figures_of_an_engine_without_requests_are_zero(make_engine: MakeEngine) -> None:
    engine, _ = make_engine()
    stats = engine.stats
    stats.num_running, stats.num_waiting, stats.kv_cache_usage, stats.num_drafts = 3, 2, 0.5, 9
    assert (0, 0, 0.0, 9) == (
        engine.stats.num_running,
        engine.stats.num_waiting,
        engine.stats.kv_cache_usage,
        engine.stats.num_drafts,
    )


async def test_closing_ends_running_requests_with_an_error_and_is_no_death(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DEATH_POLL_INTERVAL_S", 0)
    engine, llm = make_engine(output([7]), None)
    llm.output_handler = asyncio.ensure_future(asyncio.Event().wait())
    death = asyncio.ensure_future(engine.wait_dead())
    generation = engine.generate(request())
    await anext(generation)
    running = asyncio.ensure_future(anext(generation))
    await asyncio.gather(engine.close(), engine.close())
    with pytest.raises(EngineDeadError, match="closed"):
        await running
    with pytest.raises(EngineDeadError, match="closed"):
        await ask(engine, request_id="late")
    assert 1 == sum(call[0] == "shutdown" for call in llm.calls)
    assert (True, True, 0, False) == (engine.dead, llm.output_handler.cancelled(), engine.num_unfinished, death.done())
    death.cancel()


async def test_a_death_is_noticed_without_a_request(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEATH_POLL_INTERVAL_S", 0)
    engine, llm = make_engine()
    death = asyncio.ensure_future(engine.wait_dead())
    await asyncio.sleep(0)
    assert not death.done()
    llm.errored = True
    await asyncio.wait_for(death, 60)
    assert engine.dead


@pytest.mark.parametrize("endpoint", [None, "http://localhost:4317"])
async def test_an_engine_that_traces_is_told_of_the_trace_and_no_other(endpoint: str | None) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    llm = PaperLlm([output([7], "stop")])  # one that does not trace warns of what it is told
    llm.vllm_config.observability_config.otlp_traces_endpoint = endpoint
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    await ask(VllmEngine(llm, ByteVocabulary()), trace_headers=headers)

    assert (headers if endpoint else None) == llm.calls[0][3]["trace_headers"]


@pytest.fixture
def long_from_10(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from server.engine import vllm_prompts

    monkeypatch.setattr(vllm_prompts, "LONG_TOKENS", 9)
    monkeypatch.setattr(vllm_prompts, "_TOKENS_AT_ONCE", 4)


@pytest.mark.usefixtures("long_from_10")
async def test_a_long_prompt_is_validated_in_a_thread_and_not_on_the_loop(make_engine: MakeEngine) -> None:
    engine, llm = make_engine(output([7], "stop"))
    llm.may_validate.clear()
    asking = asyncio.ensure_future(ask(engine, token_ids=[1] * 10))
    assert await asyncio.to_thread(llm.validating.acquire, timeout=10)  # the loop goes on meanwhile
    assert [] == llm.calls
    llm.may_validate.set()
    assert [EngineDelta([7], finish_reason="stop")] == await asking
    assert 10 == llm.num_validated
    llm.renderer.validate_token_ids([1] * 10, parameter="prompt")  # what vLLM calls on the loop
    assert 10 == llm.num_validated
    llm.renderer.validate_token_ids([1] * 9, parameter="prompt")
    assert 19 == llm.num_validated


@pytest.mark.usefixtures("long_from_10")
async def test_a_long_prompt_with_an_unknown_token_is_refused(make_engine: MakeEngine) -> None:
    engine, llm = make_engine(output([7], "stop"))
    with pytest.raises(InvalidRequestError, match="out of vocabulary"):
        await ask(engine, token_ids=[*[1] * 9, 256, *[1] * 20])
    assert ([], 0) == (llm.calls, engine.num_unfinished)


@pytest.mark.usefixtures("long_from_10")
async def test_a_long_prompt_that_is_aborted_while_it_is_validated_never_reaches_vllm(make_engine: MakeEngine) -> None:
    engine, llm = make_engine(output([7], "stop"))
    llm.may_validate.clear()
    llm.abort = lambda request_id: asyncio.sleep(0)  # type: ignore[attr-defined]
    asking = asyncio.ensure_future(ask(engine, token_ids=[1] * 10))
    assert await asyncio.to_thread(llm.validating.acquire, timeout=10)
    await engine.abort("r")
    llm.may_validate.set()
    assert [EngineDelta([], finish_reason="abort")] == await asking
    assert ([], 0) == (llm.calls, engine.num_unfinished)
