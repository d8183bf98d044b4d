"""The arithmetic of the simulated prefix cache."""

from __future__ import annotations

import pytest

from server.engine.scripted.cache import BLOCK_TOKENS, CachedSequence, PrefixCache


def prefill(cache: PrefixCache, num_tokens: int, salt: str = "salt", token: int = 1) -> int:
    return CachedSequence(cache, salt).prefill([token] * num_tokens)


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [(1, 0), (63, 0), (64, 0), (65, 64), (127, 64), (128, 64), (129, 128), (640, 576), (641, 640)],
)
def test_whole_blocks_are_found_but_never_the_last_token(num_tokens: int, expected: int) -> None:
    cache = PrefixCache()
    assert 64 == BLOCK_TOKENS
    assert 0 == prefill(cache, num_tokens)
    assert expected == prefill(cache, num_tokens)


def test_only_a_common_prefix_is_found() -> None:
    cache = PrefixCache()
    prefix = list(range(200))
    CachedSequence(cache, "salt").prefill([*prefix, *[7] * 200])
    assert 192 == CachedSequence(cache, "salt").prefill([*prefix, *[8] * 200])
    assert 0 == CachedSequence(cache, "salt").prefill([8, *prefix, *[7] * 200])


def test_a_block_is_found_by_what_comes_before_it() -> None:
    cache = PrefixCache()
    CachedSequence(cache, "salt").prefill([*[1] * 64, *[2] * 64, 0])
    assert 0 == CachedSequence(cache, "salt").prefill([*[2] * 64, 0])


def test_salts_do_not_share() -> None:
    cache = PrefixCache()
    assert [0, 0, 128, 128] == [prefill(cache, 129, salt) for salt in ("a", "b", "a", "b")]


def test_the_least_recently_used_blocks_go_first() -> None:
    cache = PrefixCache(num_blocks=4)
    prefill(cache, 129, "a")
    prefill(cache, 129, "b")
    assert 128 == prefill(cache, 129, "a")
    prefill(cache, 129, "c")
    assert [128, 128] == [prefill(cache, 129, "a"), prefill(cache, 129, "c")]
    assert 0 == prefill(cache, 129, "b")


def test_an_answer_extends_the_prefix_however_it_is_split() -> None:
    cache = PrefixCache()
    answered = CachedSequence(cache, "salt")
    answered.prefill([1] * 100)
    for _ in range(100):
        answered.extend([2])
    assert 192 == CachedSequence(cache, "salt").prefill([*[1] * 100, *[2] * 101])


def test_an_image_counts_from_its_own_block_on() -> None:
    cache = PrefixCache()
    begin = 300
    prompt = [*[1] * 64, begin, *[2] * 200]
    found = [CachedSequence(cache, "salt", [image], begin).prefill(prompt) for image in ("cat", "cat", "dog", "dog")]
    assert [0, 256, 64, 256] == found


def test_an_image_without_a_marker_counts_from_the_start() -> None:
    cache = PrefixCache()
    found = [CachedSequence(cache, "salt", [image]).prefill([1] * 129) for image in ("cat", "cat", "dog")]
    assert [0, 128, 0] == found
