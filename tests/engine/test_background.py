"""What is put behind transparent pixels, against K3's own arithmetic, pixel by pixel."""

from __future__ import annotations

import random
from typing import Any

import pytest
from PIL import Image as PillowImage

from server.engine.background import NUM_ROWS_AT_ONCE, Background, opaque
from tests.services.viewer import HeldPixels

np = pytest.importorskip("numpy", reason="NumPy comes with vLLM")

K3 = {
    "pattern": "chessboard",
    "chessboard_square_size": 8,
    "chessboard_square_on_top_left": True,
    "chessboard_white_value": 255,
    "chessboard_gray_value": 180,
}


def noise(width: int, height: int, seed: int) -> PillowImage.Image:
    return PillowImage.frombytes("RGBA", (width, height), random.Random(seed).randbytes(4 * width * height))


def flat(picture: PillowImage.Image) -> list[Any]:
    return [picture.getpixel((x, y)) for y in range(picture.height) for x in range(picture.width)]


def expected(picture: PillowImage.Image, behind: Any) -> list[tuple[int, ...]]:
    """`behind(x, y)`: the background's value there."""
    values: list[tuple[int, ...]] = []
    for y in range(picture.height):
        for x in range(picture.width):
            *colour, alpha = picture.getpixel((x, y))
            share = np.float32(alpha) / np.float32(255)
            mixed = (share * np.float32(value) + (np.float32(1) - share) * np.float32(behind(x, y)) for value in colour)
            values.append(tuple(int(value) for value in mixed))
    return values


def filled(picture: PillowImage.Image, background: Background | None) -> list[tuple[int, ...]]:
    array = opaque(HeldPixels(picture), background)
    assert (picture.height, picture.width, 3) == array.shape
    return [tuple(int(value) for value in pixel) for row in array for pixel in row]


@pytest.mark.parametrize("size", [(1, 1), (17, 33), (9, NUM_ROWS_AT_ONCE + 13), (40, 2 * NUM_ROWS_AT_ONCE)])
def test_k3s_chessboard(size: tuple[int, int]) -> None:
    picture = noise(*size, seed=1)
    background = Background.of_checkpoint({"transparent_bg_config": K3})
    assert expected(picture, lambda x, y: 180 if (x // 8 + y // 8) % 2 else 255) == filled(picture, background)


@pytest.mark.parametrize(
    ("config", "behind"),
    [
        ({"pattern": "white"}, lambda x, y: 255),
        ({"pattern": "gray"}, lambda x, y: 128),
        ({}, lambda x, y: 0),
        (K3 | {"chessboard_square_on_top_left": False}, lambda x, y: 255 if (x // 8 + y // 8) % 2 else 180),
        ({"pattern": "chessboard"}, lambda x, y: 200 if (x // 16 + y // 16) % 2 else 255),
    ],
)
def test_other_checkpoints(config: dict[str, Any], behind: Any) -> None:
    picture = noise(37, 35, seed=2)
    assert expected(picture, behind) == filled(picture, Background.of_checkpoint({"transparent_bg_config": config}))


def test_without_a_background_the_colours_stay() -> None:
    picture = noise(5, 4, seed=3)
    assert Background.of_checkpoint({}) is None
    assert [pixel[:3] for pixel in flat(picture)] == filled(picture, None)


def test_an_opaque_picture_is_not_changed() -> None:
    picture = noise(5, 4, seed=4).convert("RGB")
    assert flat(picture) == filled(picture, Background("white"))


@pytest.mark.parametrize("given", [{"pattern": "stripes"}, {"chessboard_square_size": None}, 7])
def test_what_is_no_background_is_refused(given: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        Background.of_checkpoint({"transparent_bg_config": given})
