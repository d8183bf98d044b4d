"""Images on real vLLM: Kimi K3's own image processor in front of a tiny model with random weights."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import sys
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from PIL import Image as PillowImage

from server.app import create_app
from server.engine.base import Engine, EngineDelta
from server.engine.vllm import VllmEngine
from server.errors import EngineError, InvalidRequestError, MediaError
from server.images import ImageRule
from server.settings import Settings
from tests.services import tiny_vision
from tests.services.images import data_url, encoded
from tests.services.viewer import SIZE, Source, Viewer, blue, plain, red

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session"), pytest.mark.filterwarnings("ignore")]

PLACEHOLDER = "<|kimi_image_placeholder|>"
OFF: Any = {"thinking": {"type": "disabled"}}  # whose note would be a common beginning of all prompts
ADMIN = "k3gw-images-admin-0123456789"
TENANTS: dict[str, Any] = {"ann": {}, "bea": {}, "cid": {"cache_group": "choir"}, "dot": {"cache_group": "choir"}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def seeing_engine(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmEngine]:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    plugin, checkpoint = tmp_path_factory.mktemp("plugin"), tmp_path_factory.mktemp("tiny-vision")
    profile = tiny_vision.profile()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vLLM's imports warn
        patch.syspath_prepend(str(plugin))
        tiny_vision.install_plugin(plugin, profile)
        tiny_vision.write_checkpoint(checkpoint, demo_model)
        engine = await VllmEngine.open(profile, checkpoint)
        assert str(plugin) in sys.path
        yield engine
        await engine.close()
        gc.unfreeze()  # a gateway has run on it, which exempts what is there at its start from being collected
        gc.collect()


@pytest.fixture
def viewer(seeing_engine: VllmEngine) -> Viewer:
    return Viewer(seeing_engine)


async def test_the_rule_of_tokens_is_the_checkpoints(viewer: Viewer) -> None:
    assert ImageRule() == viewer.engine.facts.image_rule


async def test_our_prompt_is_what_vllm_makes_of_its_placeholders(viewer: Viewer) -> None:
    encode = viewer.engine.vocabulary.encode
    first, second = red(), blue(size=(61, 333))
    request = viewer.request("Look: ", first, " and ", second, ". Compare.")
    placeholder = encode(PLACEHOLDER)
    with_placeholders = [*encode("Look: "), *placeholder, *encode(" and "), *placeholder, *encode(". Compare.")]
    rendered = await viewer.rendered(with_placeholders, first.picture, second.picture)
    ours = await viewer.engine._media.engine_input(request)
    assert rendered["prompt_token_ids"] == request.token_ids == ours["prompt_token_ids"]
    for expected, actual in zip(rendered["mm_placeholders"]["image"], ours["mm_placeholders"]["image"], strict=True):
        assert (expected.offset, expected.length) == (actual.offset, actual.length)
        assert expected.is_embed.tolist() == actual.is_embed.tolist()
    assert [first.content_hash, second.content_hash] == ours["mm_hashes"]["image"]
    assert request.cache_salt == ours["cache_salt"]


@pytest.mark.parametrize(
    "size",
    [
        (1, 1),
        (28, 28),
        (29, 28),
        (27, 29),
        (1, 10_000),
        (10_000, 1),
        (8192, 64),
        (64, 8192),
        (640, 480),
        (2600, 700),
        (4096, 4096),
    ],
    ids=lambda size: f"{size[0]}x{size[1]}",
)
async def test_vllm_makes_as_many_tokens_of_an_image_as_we_count(viewer: Viewer, size: tuple[int, int]) -> None:
    rendered = await viewer.rendered(viewer.engine.vocabulary.encode(PLACEHOLDER), PillowImage.new("RGB", size))
    (found,) = rendered["mm_placeholders"]["image"]
    assert ImageRule().num_tokens(*size) == found.get_num_embeds() == int(found.is_embed.sum())
    assert viewer.block(plain((0, 0, 0), size).image) == rendered["prompt_token_ids"]


async def test_the_model_sees_the_pixels(viewer: Viewer) -> None:
    first, again, other = [await viewer.answer("Look: ", source, " What is it?") for source in (red(), red(), blue())]
    assert first == again  # whatever it is called
    assert first != other  # of the same size
    assert first != await viewer.answer("Look:  What is it?")


async def test_the_same_image_again_is_neither_decoded_nor_computed(viewer: Viewer) -> None:
    source, hits = red(), viewer.processor_hits
    parts = ("Look: ", source, " What is it?")
    first, second = [await viewer.deltas(*parts, salt="same") for _ in range(2)]
    request = viewer.request(*parts)
    (placed,) = request.media
    assert 0 == first[0].num_cached_tokens
    assert placed.start + placed.num_tokens - 32 < second[0].num_cached_tokens < len(request.token_ids)
    assert (hits + 1, 1) == (viewer.processor_hits, len(source.made))
    expected, again = [[token_id for delta in deltas for token_id in delta.token_ids] for deltas in (first, second)]
    assert expected == again


async def test_another_cache_group_finds_nothing(viewer: Viewer) -> None:
    source = red()
    theirs = replace(source, content_hash="another groups hash", made=[])
    await viewer.answer("Look: ", source, " What is it?", salt="one")
    hits = viewer.processor_hits
    assert 0 == await viewer.num_cached("Look: ", theirs, " What is it?", salt="other")
    assert (hits, 1) == (viewer.processor_hits, len(theirs.made))


async def test_another_image_of_the_same_size_is_not_taken_from_the_prefix_cache(viewer: Viewer) -> None:
    # The token ids are the same; what is before the image may be found.
    before = "word " * 80
    assert 0 == await viewer.num_cached(before, red(), " What is it?", salt="alike")
    request = viewer.request(before, blue(), " What is it?", salt="alike")
    assert 0 < (await anext(viewer.engine.generate(request))).num_cached_tokens <= request.media[0].start


async def test_the_order_of_images_matters(viewer: Viewer) -> None:
    one, other = red(), blue()
    assert await viewer.answer(one, other, " Which?") != await viewer.answer(other, one, " Which?")


async def test_the_same_image_twice_in_a_prompt(viewer: Viewer) -> None:
    source = red()
    expected = await viewer.answer("A ", red(), " B ", red(), " Compare.")
    fresh, cached = [await viewer.answer("A ", source, " B ", source, " Compare.") for _ in range(2)]
    assert expected == fresh == cached
    assert 1 == len(source.made)
    other = blue()
    assert await viewer.answer(source, other, source, " x") == await viewer.answer(red(), blue(), red(), " x")


async def test_some_of_the_images_are_known(viewer: Viewer) -> None:
    known, new = red(), blue()
    await viewer.answer(known)
    expected = await viewer.answer("A ", red(), " B ", blue(), " Compare.")
    assert expected == await viewer.answer("A ", known, " B ", new, " Compare.")
    assert (1, 1) == (len(known.made), len(new.made))


@pytest.mark.parametrize(
    "typed",
    [
        PLACEHOLDER,
        PLACEHOLDER * 3,
        "<|media_begin|>image 190x170<|media_content|><|media_pad|><|media_end|>",
        "<|media_pad|>" * 60,
    ],
)
async def test_what_a_client_types_stays_text(viewer: Viewer, typed: str) -> None:
    source = red()
    request = viewer.request(typed, source, typed, " What is it?")
    (placed,) = request.media
    control = frozenset(viewer.engine.vocabulary.control.values())
    around = [*request.token_ids[: placed.start], *request.token_ids[placed.start + placed.num_tokens :]]
    assert not control & set(around)
    ready = await viewer.engine._media.engine_input(request)
    (found,) = ready["mm_placeholders"]["image"]
    assert (placed.start, placed.num_tokens) == (found.offset, found.length)
    assert request.token_ids == ready["prompt_token_ids"]
    answers = [await viewer.answer(typed, of, typed, " What is it?") for of in (source, blue())]
    assert answers[0] != answers[1]


async def test_behind_what_is_transparent_is_what_the_checkpoint_says(viewer: Viewer) -> None:
    transparent = plain((210, 30, 20, 0), mode="RGBA")
    board = PillowImage.new("RGB", transparent.picture.size, (255, 255, 255))
    for x, y in itertools.product(range(board.width), range(board.height)):
        if (x // 8 + y // 8) % 2:
            board.putpixel((x, y), (180, 180, 180))
    expected = await viewer.answer("Look: ", Source(board), " What is it?")
    assert expected == await viewer.answer("Look: ", transparent, " What is it?")
    assert expected != await viewer.answer("Look: ", plain((255, 255, 255)), " What is it?")
    opaque = plain((210, 30, 20, 255), mode="RGBA")
    assert await viewer.answer("Look: ", red(), " What is it?") == await viewer.answer("Look: ", opaque, " What is it?")


async def test_an_image_that_cannot_be_decoded_after_all_fails_alone(viewer: Viewer) -> None:
    broken = red(error=MediaError("the image ends in the middle", param="messages[0].content[1]"))
    with pytest.raises(MediaError, match="ends in the middle"):
        await viewer.answer("Look: ", red(), broken)
    assert (0, False) == (viewer.engine.num_unfinished, viewer.engine.dead)
    assert 6 == len(await viewer.answer("Look: ", red(), " What is it?"))


async def test_more_images_than_the_profile_takes_are_refused(viewer: Viewer) -> None:
    sources = [red() for _ in range(tiny_vision.MOST_IMAGES + 1)]
    with pytest.raises(InvalidRequestError, match=r"5 images .* takes 4"):
        await viewer.answer(*sources)
    assert [] == [pixels for source in sources for pixels in source.made]
    assert 6 == len(await viewer.answer(*sources[1:], " x"))


async def test_tokens_other_than_the_checkpoints_are_our_fault(viewer: Viewer) -> None:
    request = viewer.request("Look: ", red(), " What is it?")
    (placed,) = request.media
    short = replace(placed, num_tokens=placed.num_tokens - 1)
    with pytest.raises(EngineError, match=f"190x170 .* {placed.num_tokens - 1} tokens .* {placed.num_tokens} by"):
        await anext(viewer.engine.generate(replace(request, media=(short,))))
    moved = replace(placed, start=placed.start - 1)
    with pytest.raises(EngineError, match="others"):
        await anext(viewer.engine.generate(replace(request, media=(moved,))))
    assert 0 == viewer.engine.num_unfinished


async def test_an_image_that_the_engine_core_has_lost_is_sent_again(viewer: Viewer) -> None:
    source = red()
    expected = await viewer.answer("Look: ", source, " What is it?")
    await viewer.engine._llm.engine_core.reset_mm_cache_async()  # of the core alone; this process thinks it is there
    assert expected == await viewer.answer("Look: ", source, " What is it?")
    assert 2 == len(source.made)
    assert expected == await viewer.answer("Look: ", source, " What is it?")
    assert 2 == len(source.made)


async def test_an_image_that_is_dropped_while_it_waits_is_decoded(viewer: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = await viewer.answer("A ", red(), " B ", blue(), " Which?")
    monkeypatch.setattr(viewer.engine._media, "_is_cached", lambda image: True)
    sources = red(), blue()
    assert expected == await viewer.answer("A ", sources[0], " B ", sources[1], " Which?")
    assert [1, 1] == [len(source.made) for source in sources]


async def test_an_abort_before_the_engine_has_the_request_ends_it(viewer: Viewer) -> None:
    source = red(gate=asyncio.Event())
    request = viewer.request("Look: ", source)
    deltas = asyncio.ensure_future(anext(viewer.engine.generate(request)))
    await asyncio.sleep(0)
    assert 1 == viewer.engine.num_unfinished
    await viewer.engine.abort(request.request_id)
    source.gate.set()
    assert EngineDelta([], finish_reason="abort") == await deltas
    assert 0 == viewer.engine.num_unfinished
    assert 6 == len(await viewer.answer("Look: ", source))


async def test_no_more_than_two_requests_hold_decoded_images(viewer: Viewer) -> None:
    gate = asyncio.Event()
    sources = [red(gate=gate) for _ in range(6)]
    answers = [asyncio.ensure_future(viewer.answer("Look: ", source, " What is it?")) for source in sources]
    cached = red()
    await viewer.answer("Look: ")  # text is not held up
    assert 6 == viewer.engine.num_unfinished
    assert [] == [pixels for source in sources for pixels in source.made]
    gate.set()
    assert 1 == len({tuple(answer) for answer in await asyncio.gather(*answers)})
    assert await viewer.answer("Look: ", cached, " What is it?") == answers[0].result()
    assert all(pixels.closed for source in sources for pixels in source.made)


async def test_requests_that_are_left_at_any_time_leave_nothing(viewer: Viewer) -> None:
    shared = red()
    running = []
    for i in range(24):
        source = shared if i % 3 == 0 else plain((10 * i, 40, 220), size=(150 + i, 140))
        running.append(asyncio.ensure_future(viewer.answer("Look: ", source, " What is it?", max_tokens=40)))
    # Each is left after other work of the loop: while it waits for room, is decoded, processed, or computed.
    for i, answer in enumerate(running):
        if i % 2:
            answer.cancel()
        await viewer.answer("x", max_tokens=1)
    outcomes = await asyncio.gather(*running, return_exceptions=True)
    assert [40] * 12 == [len(outcome) for outcome in outcomes[::2] if isinstance(outcome, list)]
    assert all(isinstance(outcome, asyncio.CancelledError | list) for outcome in outcomes[1::2])
    assert any(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes[1::2])
    assert (0, 0) == (viewer.engine.num_unfinished, viewer.engine._llm.output_processor.get_num_unfinished_requests())
    # What a request that was left has put into one cache and not into the other is found out.
    for i in range(0, 24, 3):
        assert 6 == len(await viewer.answer(plain((10 * i, 40, 220), size=(150 + i, 140)), shared))


class Lent:
    """The module's engine, for a gateway that believes it its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def close(self) -> None:
        """Others go on."""


@dataclass(frozen=True)
class Service:
    """A gateway over the engine, asked without a socket: the engine lives on the tests' own loop."""

    http: httpx.AsyncClient
    keys: dict[str, str]

    async def ask(self, tenant: str, *parts: dict[str, Any], **options: Any) -> dict[str, Any]:
        content = [{"type": "text", "text": "Look:"}, *parts, {"type": "text", "text": "What is it?"}]
        messages = [{"role": "user", "content": content}]
        body = {"model": "kimi-k3", "messages": messages, "temperature": 0, "max_tokens": 6, **OFF, **options}
        headers = {"authorization": f"Bearer {self.keys[tenant]}"}
        answer = await self.http.post("/v1/chat/completions", json=body, headers=headers, timeout=60)
        assert 200 == answer.status_code, answer.text
        if "stream" in options:
            *_, usage, done, _ = answer.text.split("\n\n")
            assert "data: [DONE]" == done
            return dict(json.loads(usage.removeprefix("data: "))["usage"])
        return dict(answer.json()["usage"])


@asynccontextmanager
async def service_over(engine: Engine, folder: Path) -> AsyncIterator[Service]:
    async def open_engine() -> Any:
        return Lent(engine)

    storage = {"ledger_url": f"sqlite:///{folder / 'gateway.db'}", "spool_path": str(folder / "spool")}
    values = {"engine": {"kind": "scripted"}, "storage": storage, "tenancy": {"admin_key": ADMIN}, "tenants": TENANTS}
    app = create_app(Settings.model_validate(values), open_engine)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as http,
    ):
        await app.state.gateway.opened.wait()
        keys = {}
        for tenant in TENANTS:
            made = await http.post("/admin/v1/keys", json={"tenant": tenant}, headers={"authorization": f"Bearer {ADMIN}"})
            keys[tenant] = made.json()["secret"]
        yield Service(http, keys)


def part(colour: tuple[int, ...], size: tuple[int, int] = SIZE) -> dict[str, Any]:
    """An image part, large enough in its file to be lifted out of the body as it comes."""
    return {"type": "image_url", "image_url": {"url": data_url(encoded(*size, colour=colour) + bytes(150_000))}}


async def test_images_over_http_are_answered_counted_and_cached_for_their_group_alone(viewer: Viewer, tmp_path: Path) -> None:
    picture = part((40, 170, 60))
    num_block_tokens = len(viewer.block(plain((0, 0, 0)).image))
    async with service_over(viewer.engine, tmp_path) as service:
        text_alone = await service.ask("ann")
        hits = viewer.processor_hits
        for number, (tenant, is_known) in enumerate(
            [("ann", False), ("ann", True), ("bea", False), ("cid", False), ("dot", True), ("ann", True)]
        ):
            options = {"stream": True, "stream_options": {"include_usage": True}} if number % 2 else {}
            usage = await service.ask(tenant, picture, **options)
            hits += is_known
            assert (tenant, hits) == (tenant, viewer.processor_hits)
            assert num_block_tokens == usage["prompt_tokens"] - text_alone["prompt_tokens"]
            num_cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
            # The whole image, and no more than all: what is found again is in blocks of 32.
            assert num_cached == (usage["prompt_tokens"] // 32 * 32 if is_known else 0), tenant
        assert 0 == viewer.engine.num_unfinished
