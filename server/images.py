"""An image on its way to the engine: what is known of it, how to get at its pixels, and how many tokens it takes.

Role: vocabulary shared by what fetches and checks images (`media/`), what renders prompts and what runs the engine. An image is
carried as its file; pixels are made when the engine wants them, so that what waits in a queue is small.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol


class Pixels(Protocol):
    """A decoded image, upright. The memory is given back by `close`, or when nothing refers to it any more."""

    @property
    def mode(self) -> Literal["RGB", "RGBA"]:
        """RGBA where the file says anything of transparency."""
        ...

    @property
    def width(self) -> int:
        """In pixels."""
        ...

    @property
    def height(self) -> int:
        """In pixels."""
        ...

    @property
    def data(self) -> memoryview:
        """Shape (height, width, 3 or 4), bytes, rows from the top, without gaps."""
        ...

    def close(self) -> None:
        """Give the memory back. May be called twice."""
        ...


@dataclass(slots=True, frozen=True)
class Image:
    """One image that was checked: it can be decoded.

    `width` and `height` in pixels, of the upright image. `content_hash`: hexadecimal, the same for the same file from the same
    cache group and for nothing else: another group's differs, so that nothing cached under it is shared. `pixels` decodes the
    file; raises `MediaError`.
    """

    width: int
    height: int
    content_hash: str
    pixels: Callable[[], Awaitable[Pixels]]


@dataclass(slots=True, frozen=True)
class PlacedImage:
    """`image` in a prompt: its tokens, markup included, are `num_tokens` from `start` on."""

    image: Image
    start: int
    num_tokens: int


@dataclass(slots=True, frozen=True)
class ImageRule:
    """How large an image the model is shown, and how many tokens it takes.

    An image is cut into patches of `patch_size` pixels a side, of which `merge` x `merge` make one token. It is shrunk, never
    enlarged, to have at most `max_patches`, and at most `max_patches_a_side` along each side; then it is padded to whole tokens.
    `fixed_tokens`: so many for every image, whatever its size.
    Source: Kimi K3's image processor and its `preprocessor_config.json`, whose values are the defaults here.
    """

    patch_size: int = 14
    merge: int = 2
    max_patches: int = 65_536
    max_patches_a_side: int = 512
    fixed_tokens: int | None = None

    @classmethod
    def of_checkpoint(cls, config: dict[str, Any]) -> ImageRule:
        """The rule in a checkpoint's `media_proc_cfg`. Raises `LookupError`, `TypeError` and `ValueError` where there is none."""
        merge = config["merge_kernel_size"]
        fixed = config.get("fixed_output_tokens")
        return cls(
            patch_size=int(config["patch_size"]),
            merge=int(merge[0] if isinstance(merge, list | tuple) else merge),
            max_patches=int(config["in_patch_limit"]),
            max_patches_a_side=int(config["patch_limit_on_one_side"]),
            fixed_tokens=None if fixed is None else int(fixed),
        )

    def num_tokens(self, width: int, height: int) -> int:
        """Tokens of an image of `width` x `height` pixels, both at least 1; the markup around them is not counted."""
        if self.fixed_tokens is not None:
            return self.fixed_tokens
        longest = self.max_patches_a_side * self.patch_size
        num_patches = max(1.0, width // self.patch_size) * max(1.0, height // self.patch_size)
        scale = min(1.0, math.sqrt(self.max_patches / num_patches), longest / width, longest / height)
        cell = self.merge * self.patch_size
        shown = (min(max(1, int(side * scale)), longest) for side in (width, height))
        across, down = (-(-side // cell) for side in shown)
        return across * down
