"""Prompts with images, made ready for vLLM by its own image processor.

Role: step 6 of a request that has images, before vLLM hears of it. vLLM's processor is shown the images on a prompt of nothing
but placeholders, and what it makes of them is put where the prompt has their tokens already: what a client typed is not searched.
Invariant: the tokens of each image in the prompt are those that the processor made of it; else the request fails. vLLM caches
what it made by our content hash, so nothing cached for one cache group is ever used for another.
Must not: run the processor, or touch pixels, on the event loop. Imports vllm, so it is imported once an engine is built.
Source: vllm/renderers/base.py, vllm/multimodal/processing/processor.py, vllm/multimodal/cache/lru.py (0.32 and 0.33).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

from PIL import Image as PillowImage
from vllm.exceptions import VLLMClientError
from vllm.inputs import TokensPrompt, mm_input

from server.engine.background import Background, opaque
from server.engine.base import EngineRequest
from server.errors import EngineError, GatewayError
from server.images import Image, ImageRule, Pixels, PlacedImage

MODALITY: Final = "image"
NUM_DECODED_AT_ONCE: Final = 3
"""Requests that hold decoded images, one of a cache group at most: one is processed, and others are decoded meanwhile."""
_PROBES: Final = ((1, 1), (57, 30), (29, 400))  # (width, height) in pixels

logger = logging.getLogger(__name__)


class VllmMedia:
    """The images of one engine. `rule`: how many tokens an image takes; `most_images`: so many a prompt may have.

    `background`: what is put behind transparent parts, None for nothing.
    """

    def __init__(self, renderer: Any, rule: ImageRule, background: Background | None = None) -> None:
        processor = renderer.get_mm_processor()
        self.rule = rule
        self._background = background
        self.most_images = int(processor.info.allowed_mm_limits[MODALITY])
        self._renderer = renderer
        text = processor.dummy_inputs.get_dummy_text({MODALITY: 1})
        self._placeholder = list(renderer.get_tokenizer().encode(text, add_special_tokens=False))
        self._room = asyncio.Semaphore(NUM_DECODED_AT_ONCE)
        self._rooms: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def engine_input(self, request: EngineRequest, *, resend: bool = False) -> Any:
        """The prompt with its images as vLLM's rendered input.

        Images that vLLM has are not decoded, but for `resend`: then the engine has said that it has them no longer. Raises
        `MediaError` for an image that can't be decoded, `EngineError` where its tokens are not those of the prompt.
        """
        images = [placed.image for placed in request.media]
        try:
            rendered = await self._rendered(images, resend, self._rooms.setdefault(request.cache_salt, asyncio.Semaphore()))
        except (GatewayError, VLLMClientError):
            raise
        except Exception as error:
            raise EngineError("the engine's image processor failed on this request") from error
        return _placed(request, rendered)

    async def takes_as_told(self) -> bool:
        """Whether vLLM's processor makes as many tokens of images as `rule` says."""
        for size in _PROBES:
            rendered = await self._process([PillowImage.new("RGB", size)], [None], skip_mm_cache=True)
            (found,) = rendered["mm_placeholders"][MODALITY]
            if self.rule.num_tokens(*size) != found.get_num_embeds():
                return False
        return True

    async def _rendered(self, images: Sequence[Image], resend: bool, room: asyncio.Semaphore) -> Any:
        fresh = images if resend else [image for image in images if not self._is_cached(image)]
        try:
            return await self._decoded_and_processed(images, fresh, room)
        except ValueError:
            if len(fresh) == len(images):
                raise
        # Dropped from the cache since.
        return await self._decoded_and_processed(images, images, room)

    def _is_cached(self, image: Image) -> bool:
        cache = self._renderer.mm_processor_cache
        return cache is not None and cache.is_cached_item(image.content_hash)

    async def _decoded_and_processed(self, images: Sequence[Image], fresh: Sequence[Image], room: asyncio.Semaphore) -> Any:
        """vLLM's rendering of `images`, of which `fresh` are decoded once there is `room` for one more of the cache group's.

        Raises `ValueError` where another is not cached.
        """
        async with room if fresh else nullcontext(), self._room if fresh else nullcontext():
            different = {image.content_hash: image for image in fresh}
            pictures = {content_hash: await self._picture(image) for content_hash, image in different.items()}
            hashes = [image.content_hash for image in images]
            # All in one call, after which nothing is awaited until the engine has the request: it must hear of an image from the
            # request that brings its pixels before it does from one that found it in the cache.
            return await self._process([pictures.get(of) for of in hashes], hashes)

    async def _picture(self, image: Image) -> PillowImage.Image:
        return await asyncio.to_thread(_copied, await image.pixels(), self._background)

    async def _process(self, pictures: list[Any], hashes: list[Any], **options: Any) -> Any:
        """Runs in vLLM's own thread for it, one call after another."""
        prompt = TokensPrompt(
            prompt_token_ids=self._placeholder * len(pictures),
            multi_modal_data={MODALITY: pictures},
            multi_modal_uuids={MODALITY: hashes},
        )
        return await self._renderer.process_for_engine_async(prompt, 0.0, **options)


async def open_media(llm: Any) -> VllmMedia | None:
    """The images of `llm`, an `AsyncLLM`; None where its model sees none, or not as `ImageRule` tells."""
    processor = llm.renderer.mm_processor
    if processor is None or not processor.info.allowed_mm_limits.get(MODALITY):
        return None
    try:
        content = await asyncio.to_thread((Path(llm.model_config.model) / "preprocessor_config.json").read_bytes)
        config = json.loads(content)["media_proc_cfg"]
        media = VllmMedia(llm.renderer, ImageRule.of_checkpoint(config), Background.of_checkpoint(config))
        if await media.takes_as_told():
            return media
        logger.warning("the model's image processor does not count tokens as its configuration says; images are refused")
    except Exception:
        logger.warning("how many tokens the model makes of an image can't be told; images are refused", exc_info=True)
    return None


def _copied(pixels: Pixels, background: Background | None) -> PillowImage.Image:
    # Here and not where it is awaited: a thread goes on when nobody waits for it any more, and must have its memory.
    try:
        if pixels.mode == "RGB":
            return PillowImage.frombytes("RGB", (pixels.width, pixels.height), pixels.data)
        return PillowImage.fromarray(opaque(pixels, background))
    finally:
        pixels.close()


def _placed(request: EngineRequest, rendered: Any) -> Any:
    """`request`'s own token ids with what vLLM made of its images. Raises `EngineError` where their tokens differ."""
    token_ids = list(request.token_ids)
    ranges = []
    for placed, found in zip(request.media, rendered["mm_placeholders"][MODALITY], strict=True):
        expected = rendered["prompt_token_ids"][found.offset : found.offset + found.length]
        if expected != token_ids[placed.start : placed.start + placed.num_tokens]:
            raise _difference(placed, found.length)
        ranges.append(replace(found, offset=placed.start))
    return mm_input(
        prompt_token_ids=token_ids,
        mm_kwargs=rendered["mm_kwargs"],
        mm_hashes=rendered["mm_hashes"],
        mm_placeholders={MODALITY: ranges},
        cache_salt=request.cache_salt,
    )


def _difference(placed: PlacedImage, length: int) -> EngineError:
    size = f"{placed.image.width}x{placed.image.height}"
    return EngineError(
        f"an image of {size} pixels takes {placed.num_tokens} tokens in the prompt and {length} by the model's processor, "
        "or others than those"
    )
