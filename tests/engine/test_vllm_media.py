"""Images in front of an `AsyncLLM` of paper: what a real processor does not do on demand. Needs vLLM's classes, but no engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from server.engine.base import EngineDelta, EngineRequest, Sampling
from server.engine.vllm import VllmEngine
from server.errors import EngineDeadError, EngineError, InvalidRequestError
from server.images import Image, ImageRule, PlacedImage
from server.vocabulary.byte import ByteVocabulary
from tests.services.viewer import HeldPixels, Source, red

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

PAD, PLACEHOLDER = 77, 88
CONFIG = {"patch_size": 14, "merge_kernel_size": [2, 2], "in_patch_limit": 65_536, "patch_limit_on_one_side": 512}


class PaperRenderer:
    """Makes `num_tokens` of `pad` of each image, as its size has it by K3's rule; `errors` are raised, one a call.

    `known`: hashes in its cache. `seen`: the images of each call, None where none came.
    """

    def __init__(self, limit: int = 3, num_more: int = 0) -> None:
        self.errors: list[Exception] = []
        self.known: set[str] = set()
        self.seen: list[list[Any]] = []
        self.num_more = num_more
        info = SimpleNamespace(allowed_mm_limits={"image": limit})
        self.mm_processor: Any = SimpleNamespace(
            info=info, dummy_inputs=SimpleNamespace(get_dummy_text=lambda counts: "?" * counts["image"])
        )
        self.mm_processor_cache = SimpleNamespace(is_cached_item=self.known.__contains__)

    def get_mm_processor(self) -> Any:
        return self.mm_processor

    def get_tokenizer(self) -> Any:
        return SimpleNamespace(encode=lambda text, add_special_tokens: [PLACEHOLDER] * len(text))

    def validate_token_ids(self, token_ids: Any, **_: Any) -> None:
        """Takes any."""

    def get_eos_token_id(self) -> int:
        return 5

    async def process_for_engine_async(self, prompt: Any, arrival_s: float, **options: Any) -> Any:
        from vllm.multimodal.inputs import PlaceholderRange

        pictures = prompt["multi_modal_data"]["image"]
        assert [PLACEHOLDER] * len(pictures) == prompt["prompt_token_ids"]
        self.seen.append(pictures)
        await asyncio.sleep(0)
        if self.errors:
            raise self.errors.pop(0)
        token_ids: list[int] = []
        ranges = []
        for picture in pictures:
            length = self.num_more + ImageRule().num_tokens(*(SIZE if picture is None else picture.size))
            ranges.append(PlaceholderRange(len(token_ids), length))
            token_ids += [PAD] * length
        hashes = prompt["multi_modal_uuids"]["image"]
        return {
            "prompt_token_ids": token_ids,
            "mm_kwargs": {"image": pictures},
            "mm_hashes": {"image": hashes},
            "mm_placeholders": {"image": ranges},
        }


class PaperLlm:
    """Plays one list of `turns` a request; an exception in it is raised."""

    def __init__(self, renderer: PaperRenderer, *turns: list[Any], folder: Path = Path()) -> None:
        self.renderer = renderer
        self.turns = list(turns)
        self.prompts: list[Any] = []
        self.num_left = 0
        self.errored = False
        self.vllm_config = SimpleNamespace(
            scheduler_config=SimpleNamespace(max_num_seqs=4),
            parallel_config=SimpleNamespace(data_parallel_size=1),
            speculative_config=None,
            observability_config=SimpleNamespace(otlp_traces_endpoint=None),
        )
        self.model_config = SimpleNamespace(
            max_model_len=1000,
            model=str(folder),
            try_get_generation_config=dict,
            get_diff_sampling_param=dict,
        )

    async def generate(self, prompt: Any, params: Any, request_id: str, **options: Any) -> AsyncGenerator[Any, None]:
        self.prompts.append(dict(prompt))
        try:
            for item in self.turns.pop(0):
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.num_left += 1


SIZE = (57, 30)  # 3 x 2 tokens


def output(token_ids: list[int], finish: str | None = None) -> Any:
    completion = SimpleNamespace(token_ids=token_ids, finish_reason=finish, stop_reason=None, spec_decode_metrics=None)
    return SimpleNamespace(outputs=[completion], num_cached_tokens=0)


def made(renderer: PaperRenderer, *turns: list[Any]) -> tuple[VllmEngine, PaperLlm]:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from server.engine.vllm_media import VllmMedia

    llm = PaperLlm(renderer, *turns)
    return VllmEngine(llm, ByteVocabulary(), media=VllmMedia(renderer, ImageRule())), llm


def request(*sources: Source) -> EngineRequest:
    media = tuple(PlacedImage(source.image, 1 + 7 * i, 6) for i, source in enumerate(sources))
    token_ids = [1, *([PAD] * 6 + [2]) * len(sources)]
    return EngineRequest("r", token_ids, Sampling(9), "salt", media=media)


def small(**given: Any) -> Source:
    return red(size=SIZE, **given)


async def ask(engine: VllmEngine, *sources: Source) -> list[EngineDelta]:
    return [delta async for delta in engine.generate(request(*sources))]


DONE = [output([7]), output([8], "length")]


async def test_the_prompt_is_ours_with_what_the_processor_made() -> None:
    engine, llm = made(PaperRenderer(), DONE)
    sources = small(), small()
    assert [7, 8] == [token_id for delta in await ask(engine, *sources) for token_id in delta.token_ids]
    (prompt,) = llm.prompts
    assert ("multimodal", request(*sources).token_ids, "salt") == (
        prompt["type"],
        prompt["prompt_token_ids"],
        prompt["cache_salt"],
    )
    assert [(1, 6), (8, 6)] == [(found.offset, found.length) for found in prompt["mm_placeholders"]["image"]]
    assert all(pixels.closed for source in sources for pixels in source.made)


async def test_what_the_processor_refuses_is_the_clients_and_what_it_fails_at_is_not() -> None:
    from vllm.exceptions import VLLMValidationError

    renderer = PaperRenderer()
    engine, llm = made(renderer)
    renderer.errors = [VLLMValidationError("too many", parameter="image"), ValueError("data=secret"), RuntimeError("secret")]
    with pytest.raises(InvalidRequestError, match="too many"):
        await ask(engine, small())
    for _ in range(2):
        with pytest.raises(EngineError) as caught:
            await ask(engine, small())
        assert "secret" not in caught.value.message
    assert ([], 0) == (llm.prompts, engine.num_unfinished)


async def test_a_known_image_is_not_decoded_and_one_that_is_not_after_all_is() -> None:
    renderer = PaperRenderer()
    engine, _ = made(renderer, DONE, DONE)
    source = small()
    renderer.known.add(source.content_hash)
    await ask(engine, source)
    assert ([[None]], []) == (renderer.seen, source.made)
    renderer.errors = [ValueError("Cache miss")]
    await ask(engine, source)
    assert [True, True, False] == [pictures == [None] for pictures in renderer.seen]
    assert 1 == len(source.made)


async def test_a_request_that_comes_back_failed_is_sent_once_more_with_its_images() -> None:
    renderer = PaperRenderer()
    engine, llm = made(renderer, [output([], "error")], DONE)
    source = small()
    renderer.known.add(source.content_hash)
    assert "length" == (await ask(engine, source))[-1].finish_reason
    assert (2, 2, 1) == (len(llm.prompts), llm.num_left, len(source.made))


@pytest.mark.parametrize(
    ("turns", "num_sent"),
    [([[output([], "error")], [output([], "error")]], 2), ([[output([7]), output([], "error")]], 1)],
    ids=["twice", "after it began"],
)
async def test_a_request_that_fails_for_good_is_an_error(turns: list[list[Any]], num_sent: int) -> None:
    engine, llm = made(PaperRenderer(), *turns)
    with pytest.raises(EngineError):
        await ask(engine, small())
    assert (num_sent, num_sent, 0) == (len(llm.prompts), llm.num_left, engine.num_unfinished)


async def test_an_engine_that_dies_while_images_are_decoded_is_told() -> None:
    engine, llm = made(PaperRenderer())
    source = small(gate=asyncio.Event())
    asked = asyncio.ensure_future(ask(engine, source))
    while not engine.num_unfinished:
        await asyncio.sleep(0)
    llm.errored = True
    assert source.gate is not None
    source.gate.set()
    with pytest.raises(EngineDeadError):
        await asked
    assert ([], 0) == (llm.prompts, engine.num_unfinished)


async def test_whoever_leaves_while_images_are_decoded_leaves_nothing() -> None:
    engine, llm = made(PaperRenderer(), DONE)
    held = [small(gate=asyncio.Event()) for _ in range(2)]
    requests = [EngineRequest(f"r{i}", of.token_ids, of.sampling, "s", media=of.media) for i, of in enumerate(map(request, held))]
    running = [asyncio.ensure_future(anext(engine.generate(of))) for of in requests]
    while engine.num_unfinished < 2:
        await asyncio.sleep(0)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert ([], 0) == (llm.prompts, engine.num_unfinished)
    assert [7, 8] == [token_id for delta in await ask(engine, small()) for token_id in delta.token_ids]  # there is room again


async def test_pixels_are_given_back_where_they_can_not_be_used() -> None:
    engine, _ = made(PaperRenderer())
    pixels = HeldPixels(small().picture)
    pixels.width += 1

    async def make() -> HeldPixels:
        return pixels

    media = (PlacedImage(Image(*SIZE, "hash", make), 1, 6),)
    with pytest.raises(EngineError):
        await anext(engine.generate(EngineRequest("r", [1, *[PAD] * 6, 2], Sampling(9), "salt", media=media)))
    assert pixels.closed


@pytest.mark.parametrize(
    ("renderer", "config", "sees"),
    [
        (PaperRenderer(), {"media_proc_cfg": CONFIG}, True),
        (PaperRenderer(), {"media_proc_cfg": {**CONFIG, "patch_size": 16}}, False),
        (PaperRenderer(num_more=1), {"media_proc_cfg": CONFIG}, False),
        (PaperRenderer(limit=0), {"media_proc_cfg": CONFIG}, False),
        (PaperRenderer(), {"size": 224}, False),
        (PaperRenderer(), None, False),
    ],
    ids=["K3's", "another rule", "another count", "no images by the profile", "another model's", "no configuration"],
)
async def test_a_model_sees_where_its_processor_counts_as_its_configuration_says(
    tmp_path: Path, renderer: PaperRenderer, config: Any, sees: bool
) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from server.engine.vllm_media import open_media

    if config is not None:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(config), encoding="utf-8")
    media = await open_media(PaperLlm(renderer, folder=tmp_path))
    assert ((ImageRule(), 3) if sees else None) == (media and (media.rule, media.most_images))


async def test_a_model_of_text_sees_nothing() -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from server.engine.vllm_media import open_media

    renderer = PaperRenderer()
    renderer.mm_processor = None
    assert None is await open_media(PaperLlm(renderer))
