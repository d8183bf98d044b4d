"""Pictures, prompts with them for the engine itself, and what came of both."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import numpy as np
from PIL import Image as PillowImage

from server.engine.base import EngineDelta, EngineRequest, Sampling
from server.engine.vllm import VllmEngine
from server.images import Image, PlacedImage

SIZE = (190, 170)  # 49 tokens: more than a block of the prefix cache
_numbers = itertools.count()


class HeldPixels:
    """`Pixels` of a Pillow image."""

    def __init__(self, picture: PillowImage.Image) -> None:
        assert picture.mode in ("RGB", "RGBA")
        self.mode: Literal["RGB", "RGBA"] = picture.mode  # type: ignore[assignment]
        self.width, self.height = picture.size
        self.data = memoryview(np.asarray(picture))
        self.closed = False

    def close(self) -> None:
        self.closed = True


@dataclass
class Source:
    """A picture, what is known of it, and what was asked of it. `gate`: pixels are made once it is set."""

    picture: PillowImage.Image
    content_hash: str = ""
    gate: asyncio.Event | None = None
    error: Exception | None = None
    made: list[HeldPixels] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.content_hash = self.content_hash or f"{next(_numbers):064x}"

    async def _pixels(self) -> HeldPixels:
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.made.append(HeldPixels(self.picture))
        return self.made[-1]

    @property
    def image(self) -> Image:
        return Image(*self.picture.size, self.content_hash, self._pixels)


def plain(colour: tuple[int, ...], size: tuple[int, int] = SIZE, mode: Literal["RGB", "RGBA"] = "RGB", **given: Any) -> Source:
    return Source(PillowImage.new(mode, size, colour), **given)


def red(**given: Any) -> Source:
    return plain((210, 30, 20), **given)


def blue(**given: Any) -> Source:
    return plain((10, 40, 220), **given)


@dataclass
class Viewer:
    """Greedy requests of a few tokens, each with a cache salt of its own unless one is given."""

    engine: VllmEngine

    def block(self, image: Image) -> list[int]:
        vocabulary, rule = self.engine.vocabulary, self.engine.facts.image_rule
        assert rule is not None
        begin, content, pad, end = (vocabulary.control[f"<|media_{name}|>"] for name in ("begin", "content", "pad", "end"))
        size = vocabulary.encode(f"image {image.width}x{image.height}")
        return [begin, *size, content, *[pad] * rule.num_tokens(image.width, image.height), end]

    def request(self, *parts: str | Source, salt: str = "", **sampling: Any) -> EngineRequest:
        token_ids: list[int] = []
        media = []
        for part in parts:
            tokens = self.engine.vocabulary.encode(part) if isinstance(part, str) else self.block(part.image)
            if isinstance(part, Source):
                media.append(PlacedImage(part.image, len(token_ids), len(tokens)))
            token_ids += tokens
        number = next(_numbers)
        settings = Sampling(**{"max_tokens": 6, "temperature": 0.0, "ignore_eos": True, **sampling})
        return EngineRequest(f"images:{number}", token_ids, settings, salt or f"images-{number}", media=tuple(media))

    async def deltas(self, *parts: str | Source, **given: Any) -> list[EngineDelta]:
        return [delta async for delta in self.engine.generate(self.request(*parts, **given))]

    async def answer(self, *parts: str | Source, **given: Any) -> list[int]:
        return list(chain.from_iterable(delta.token_ids for delta in await self.deltas(*parts, **given)))

    async def num_cached(self, *parts: str | Source, **given: Any) -> int:
        return (await self.deltas(*parts, **given))[0].num_cached_tokens

    async def rendered(self, text_ids: list[int], *pictures: PillowImage.Image) -> Any:
        """What vLLM alone makes of a prompt with its placeholders."""
        prompt = {"prompt_token_ids": text_ids, "multi_modal_data": {"image": list(pictures)}}
        return await self.engine._llm.renderer.process_for_engine_async(prompt, 0.0, skip_mm_cache=True)

    @property
    def processor_hits(self) -> int:
        return int(self.engine._llm.renderer.mm_processor_cache.make_stats().hits)
