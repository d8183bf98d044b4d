"""How many tokens an image takes, against the checkpoint's own rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.images import ImageRule

# Width, height, tokens: computed with Kimi K3's image processor as vLLM 0.32 carries it (`navit_resize_image`).
# fmt: off
SIZES = [
    (1, 1, 1), (1, 2, 1), (13, 13, 1), (14, 14, 1), (27, 27, 1), (28, 28, 1), (29, 28, 2), (28, 29, 2), (56, 56, 4),
    (57, 85, 12), (1, 10000, 256), (10000, 1, 256), (2, 7168, 256), (7168, 2, 256), (7169, 1, 256), (100, 100, 16),
    (224, 224, 64), (336, 336, 144), (448, 448, 256), (512, 512, 361), (640, 480, 414), (480, 640, 414), (800, 600, 638),
    (1024, 768, 1036), (1280, 720, 1196), (1920, 1080, 2691), (1080, 1920, 2691), (2048, 2048, 5476), (2560, 1440, 4784),
    (3840, 2160, 10764), (3584, 3584, 16384), (3585, 3584, 16512), (3586, 3585, 16641), (4096, 4096, 16641), (8192, 64, 512),
    (64, 8192, 512), (7168, 7168, 16384), (7167, 1829, 16575), (10000, 10000, 16641), (12000, 9000, 16428),
    (6000, 4000, 16590), (50000, 50, 256), (3, 65535, 256), (20000, 15000, 16428),
]
# fmt: on


@pytest.mark.parametrize(("width", "height", "expected"), SIZES)
def test_an_image_takes_the_tokens_of_k3s_rule(width: int, height: int, expected: int) -> None:
    assert expected == ImageRule().num_tokens(width, height)


@given(st.integers(1, 100_000), st.integers(1, 100_000))
def test_no_image_takes_more_than_the_patches_allow(width: int, height: int) -> None:
    rule = ImageRule()
    num_tokens = rule.num_tokens(width, height)
    # Padding to whole tokens may add a row and a column to what the limit on patches leaves.
    assert 1 <= num_tokens <= rule.max_patches // rule.merge**2 + 2 * rule.max_patches_a_side // rule.merge
    assert num_tokens == rule.num_tokens(height, width)


def test_the_rule_is_read_from_a_checkpoint() -> None:
    config = {"patch_size": 16, "merge_kernel_size": [3, 3], "in_patch_limit": 900, "patch_limit_on_one_side": 60}
    assert ImageRule(16, 3, 900, 60, None) == ImageRule.of_checkpoint(config | {"fixed_output_tokens": None})
    fixed = ImageRule.of_checkpoint(config | {"merge_kernel_size": 2, "fixed_output_tokens": 7})
    assert 7 == fixed.num_tokens(1, 1) == fixed.num_tokens(5000, 5000)


@pytest.mark.parametrize("config", [{}, {"patch_size": None}, {"patch_size": 14, "merge_kernel_size": []}])
def test_a_checkpoint_without_a_rule_is_refused(config: dict[str, object]) -> None:
    with pytest.raises((LookupError, TypeError, ValueError)):
        ImageRule.of_checkpoint(config)
