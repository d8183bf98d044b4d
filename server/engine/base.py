"""The contract between the gateway and whatever generates tokens.

Role: step 6 of a request. Text never crosses this seam: the gateway renders prompts to token ids and decodes token ids itself,
so that a control token is known by its id and never confused with the same characters typed by somebody.
Invariant: what `generate` yields is complete and in order: joined, the deltas' `token_ids` are exactly the generated tokens, and
the last delta, and only it, has a `finish_reason`.
Must not: know about chat messages, channels, tools or HTTP (the one exception is `render_chat`, for models whose chat template
lives with the engine).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from server.images import ImageRule, PlacedImage
from server.vocabulary.base import Vocabulary

EngineFinish = Literal["stop", "length", "abort"]
"""`stop`: a stop token (or the end of the model's answer); `length`: `max_tokens` reached; `abort`: ended from outside."""


@dataclass(slots=True, frozen=True)
class ModelFacts:
    """What the gateway must know of the loaded model.

    `context_length`: tokens of prompt and answer together. `seats`: requests that run at once. `end_token_ids`: tokens that end
    an answer. `image_rule`: how many tokens an image takes; None where the model sees none. `default_sampling`: the model's own
    defaults (`generation_config.json`), under the names of `Sampling`'s fields. `answer_bounds`: what a small model must be held
    to where a request leaves it open, or it would never come to an end, under the names of `server.grammar.base.Bounds`' fields.
    """

    context_length: int
    seats: int
    end_token_ids: tuple[int, ...]
    image_rule: ImageRule | None = None
    default_sampling: Mapping[str, float | int] = field(default_factory=dict)
    answer_bounds: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Sampling:
    """How the next token is chosen. None means: the engine's default.

    `max_tokens` >= 1. `logprobs`: number of alternatives per token, None for no log probabilities. `logit_bias`: token id ->
    bias. `stop_token_ids` end the answer in addition to the model's own end tokens; `ignore_eos` disables the model's own.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    logprobs: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(slots=True, frozen=True)
class EngineHints:
    """Facts for engines that choose replies by them (the scripted one); the real engine ignores them.

    `tenant` and `model` are configured names. `last_user_text` and `last_text`: what the last user message, and the last message
    of all, say, images left out; `last_role`: the latter's. `num_tool_results`: tool messages after the last user message.
    `example`, where the request demands tool calls or JSON: makes the token ids of a short answer that the grammar allows, from
    the channel on that the prompt has opened; with or without the token that ends it. Must not raise.
    """

    tenant: str = ""
    model: str = ""
    last_user_text: str = ""
    last_role: str = ""
    last_text: str = ""
    num_tool_results: int = 0
    example: Callable[[], Sequence[int]] | None = None


@dataclass(slots=True, frozen=True)
class EngineRequest:
    """One generation.

    `request_id` is unique among running requests. `token_ids`, shape (num_prompt_tokens,), is the whole prompt. `cache_salt` is
    never empty: an empty salt would mean the shared prefix cache. `priority`: lower runs first. `media`: the prompt's images, in
    order; the tokens of each are in `token_ids` already. `grammar`: a structural tag as JSON. `reasoning_ended`: whether the
    grammar holds from the first token (True) or only after the reasoning (False); None without a grammar. `hints` never change
    what a real engine generates. `trace_headers`: W3C Trace Context, for an engine that traces, too.
    """

    request_id: str
    token_ids: Sequence[int]
    sampling: Sampling
    cache_salt: str
    priority: int = 0
    media: tuple[PlacedImage, ...] = ()
    grammar: str | None = None
    reasoning_ended: bool | None = None
    hints: EngineHints = EngineHints()
    trace_headers: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if not self.cache_salt:
            raise ValueError("`cache_salt` is empty: that would share the prefix cache between tenants")


@dataclass(slots=True, frozen=True)
class TokenLogprob:
    """Log probability of one generated token; `top` are alternatives as (token id, log probability), best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True, frozen=True)
class Speculation:
    """Speculative decoding of one whole request.

    `num_drafts` steps drafted `num_draft_tokens`, of which `num_accepted_tokens` were taken.
    """

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int


@dataclass(slots=True)
class EngineDelta:
    """What the engine made since the last delta.

    `token_ids`, shape (num_new_tokens,), may be empty only in the last delta. The token that ended the answer is included.
    `logprobs` has one entry per token when asked for. `num_cached_tokens`: prompt tokens found in the prefix cache, known from
    the first delta on. `stop_reason`: the stop token's id, where it is not the model's own end token. `speculation`: on the last
    delta, where the engine speculates.
    """

    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprob] | None = None
    finish_reason: EngineFinish | None = None
    stop_reason: int | None = None
    num_cached_tokens: int = 0
    speculation: Speculation | None = None


Take = Callable[[Sequence[int]], bool]
"""Takes the tokens of a delta, shape (num_new_tokens,), at once if it can, and says whether it has."""


@dataclass(slots=True, frozen=True)
class EngineStep:
    """What was last heard of the steps of one engine, of perhaps several. `at_s`: the machine's monotonic clock."""

    at_s: float
    num_running: int
    num_waiting: int
    kv_cache_usage: float


@dataclass(slots=True)
class EngineStats:
    """Figures of the engine as a whole, read when metrics are scraped.

    `num_running`, `num_waiting` (requests) and `kv_cache_usage` (0..1) are of the last engine step; the rest are totals since the
    start. `num_preemptions`: requests that lost their place in the KV cache to others and began anew. Prefix figures count prompt
    tokens: looked up in the prefix cache, and found there. `num_drafts` are steps that drafted; `accepted_per_position`, shape
    (most tokens of a draft,), counts how often the draft's token of that position was taken, and is empty where the engine does
    not speculate. `steps`, by number: of an engine that several processes share, each of which hears a part; else empty.
    """

    num_running: int = 0
    num_waiting: int = 0
    kv_cache_usage: float = 0.0
    num_preemptions: int = 0
    num_prefix_queried_tokens: int = 0
    num_prefix_hit_tokens: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    steps: dict[int, EngineStep] = field(default_factory=dict)


class Engine(Protocol):
    """A running engine. All methods are called on one event loop."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The loaded model's vocabulary."""
        ...

    @property
    def facts(self) -> ModelFacts:
        """Facts of the loaded model."""
        ...

    @property
    def stats(self) -> EngineStats:
        """The engine's own counts. The object lives as long as the engine and changes under the reader; copy what must not."""
        ...

    def generate(self, request: EngineRequest, take: Take | None = None) -> AsyncGenerator[EngineDelta, None]:
        """Deltas of one generation, as they are made.

        `take`, only where no log probabilities are asked for, may be offered deltas that are nothing but tokens (not the first,
        nor the last) in the engine's own turn of the loop, while the generator is waited for: what it takes is not yielded.
        What it raises ends the generation, and comes out of the generator as it is.
        Closing or cancelling the generator aborts the request and frees its seat within one engine step.
        Raises, at the first `__anext__`: `InvalidRequestError` for what the engine refuses, `MediaError` for an image that can't
        be decoded after all. Raises at any time: `EngineError`
        when this request failed, `EngineDeadError` when the engine is gone.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a running request: its generator yields a last delta with `finish_reason` "abort". Unknown ids are ignored."""
        ...

    async def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> list[int]:
        """Prompt token ids by the model's own chat template, generation prompt included, for the `plain` format.

        `messages` and `tools` are in OpenAI's shape; `options` are passed on to the template.
        Raises `InvalidRequestError` for what the template refuses.
        """
        ...

    @property
    def dead(self) -> bool:
        """Whether the engine is gone for good. Local knowledge, no round trip."""
        ...

    async def wait_dead(self) -> None:
        """Return when the engine has died; never returns for one that is closed in order."""
        ...

    @property
    def num_unfinished(self) -> int:
        """Requests that were given to the engine and have not ended."""
        ...

    async def close(self) -> None:
        """Stop the engine and free what it holds. Running requests end with an error. May be called twice."""
        ...
