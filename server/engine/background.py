"""What the model is shown behind the transparent parts of an image.

Role: step 6 of a request, where pixels become vLLM's: vLLM puts white behind them, whatever the checkpoint was trained on, and
hands K3's processor nothing but colours. Invariant: an image without transparency is not changed.
Where it differs: the background is drawn before an image is shrunk, while K3 does it afterwards; only images of more than
`ImageRule.max_patches` are shrunk at all.
Source: Kimi K3's `media_utils.py` and the `transparent_bg_config` of its `preprocessor_config.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from server.images import Pixels

NUM_ROWS_AT_ONCE = 64
"""Python's lock is let go between these: the event loop is not held up for more than a millisecond or so."""

Pattern = Literal["white", "black", "gray", "chessboard"]
_VALUES: Mapping[str, int] = {"white": 255, "black": 0, "gray": 128}


@dataclass(slots=True, frozen=True)
class Background:
    """A plain colour, or a chessboard of squares of `square_size` pixels, the first one of `white` where `white_first`."""

    pattern: Pattern = "black"
    square_size: int = 16
    white_first: bool = True
    white: int = 255
    gray: int = 200

    @classmethod
    def of_checkpoint(cls, config: Mapping[str, Any]) -> Background | None:
        """That of a checkpoint's `media_proc_cfg`; None where it has none: transparency is left out then.

        Raises `TypeError` and `ValueError` for one that is none.
        """
        given = config.get("transparent_bg_config")
        if given is None:
            return None
        if not isinstance(given, Mapping):
            raise TypeError("`transparent_bg_config` is no mapping")
        pattern = given.get("pattern", "black")
        if pattern not in get_args(Pattern):
            raise ValueError(f"`{pattern}` is no background; these are: {', '.join(get_args(Pattern))}")
        return cls(
            pattern=pattern,
            square_size=int(given.get("chessboard_square_size", 16)),
            white_first=bool(given.get("chessboard_square_on_top_left", True)),
            white=int(given.get("chessboard_white_value", 255)),
            gray=int(given.get("chessboard_gray_value", 200)),
        )


def opaque(pixels: Pixels, background: Background | None) -> Any:
    """The picture as a NumPy array, shape (height, width, 3), bytes, with `background` where it is transparent. A copy."""
    import numpy as np

    num_channels = len(pixels.mode)
    picture = np.frombuffer(pixels.data, np.uint8).reshape(pixels.height, pixels.width, num_channels)
    if num_channels == 3 or background is None:
        return picture[:, :, :3].copy()
    filled: Any = np.empty((pixels.height, pixels.width, 3), np.uint8)
    for top in range(0, pixels.height, NUM_ROWS_AT_ONCE):
        rows = picture[top : top + NUM_ROWS_AT_ONCE]
        alpha = rows[:, :, 3:].astype(np.float32) / 255.0
        behind = _behind(background, top, rows.shape[0], pixels.width)
        # In K3's own precision and rounding, so that the values are the same to the bit.
        filled[top : top + NUM_ROWS_AT_ONCE] = (alpha * rows[:, :, :3] + (1 - alpha) * behind).astype(np.uint8)
    return filled


def _behind(background: Background, top: int, num_rows: int, width: int) -> Any:
    """Rows from `top` on of the background, shape (num_rows, width, 1)."""
    import numpy as np

    if background.pattern != "chessboard":
        return np.full((num_rows, width, 1), _VALUES[background.pattern], np.uint8)
    down: Any = np.arange(top, top + num_rows)[:, None] // background.square_size
    across: Any = np.arange(width)[None, :] // background.square_size
    is_gray = (down + across) % 2 == int(background.white_first)
    return np.where(is_gray, background.gray, background.white).astype(np.uint8)[:, :, None]
