"""The 256 special slots behind Kimi K3's base vocabulary.

Role: the one place that knows K3's control tokens by name. K2 gives the same ids other names (163587 is `<|im_user|>` there), so
the names are never read from a `tokenizer_config.json` beside a merge table: which model that belongs to can't be told.
"""

from __future__ import annotations

from typing import Final

NUM_SPECIAL_SLOTS: Final = 256

_NAMES: Final = {
    0: "[BOS]",
    1: "[EOS]",
    2: "<|end_of_msg|>",
    3: "<|open|>",
    4: "<|close|>",
    5: "<|sep|>",
    6: "[start_header_id]",
    7: "[end_header_id]",
    9: "[EOT]",
    18: "<|media_begin|>",
    19: "<|media_content|>",
    20: "<|media_end|>",
    21: "<|media_pad|>",
    65: "<osagent_mode>",
    254: "[UNK]",
    255: "[PAD]",
}


def special_slots(num_base_tokens: int) -> dict[str, int]:
    """Name -> id of all special slots behind `num_base_tokens` ordinary tokens, in the order of the ids."""
    return {
        _NAMES.get(offset, f"<|reserved_token_{num_base_tokens + offset}|>"): num_base_tokens + offset
        for offset in range(NUM_SPECIAL_SLOTS)
    }
