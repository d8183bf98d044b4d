"""The demo checkpoint's tokenizer: SmolLM2's byte-level BPE with Kimi K3's control tokens behind it.

Role: turns the token list of the GGUF file into `tokenizer.json`. Invariant: the ids of SmolLM2's tokens do not move, and each
control token has the id `base size + its place in CONTROL_TOKENS`: the rows of the adapter are in that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Ids 49152, 49153, ... The first four carry the protocol; media tokens are there so that their names are reserved, as in K3.
CONTROL_TOKENS = (
    "<|open|>",
    "<|close|>",
    "<|sep|>",
    "<|end_of_msg|>",
    "<|media_begin|>",
    "<|media_content|>",
    "<|media_end|>",
    "<|media_pad|>",
    "[PAD]",
)
END_OF_MESSAGE = "<|end_of_msg|>"
PADDING = "[PAD]"
GGUF_CONTROL = 3  # `tokenizer.ggml.token_type` of a control token


def _added_token(token_id: int, content: str) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": token_id, "content": content, **flags}


def tokenizer_json(tokens: Sequence[str], token_types: Sequence[int], merges: Sequence[str]) -> dict[str, Any]:
    """The contents of `tokenizer.json`. `tokens` and `token_types` by id, shape (base_vocab_size,); `merges` as `left right`,
    best first.

    Digits are split one by one before the merges, as SmolLM2 was trained. Source: llama.cpp, pre-tokenizer `smollm`.
    """
    control = [(i, token) for i, (token, kind) in enumerate(zip(tokens, token_types, strict=True)) if kind == GGUF_CONTROL]
    control += [(len(tokens) + i, token) for i, token in enumerate(CONTROL_TOKENS)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(i, token) for i, token in control],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in merges],
        },
    }


def tokenizer_config(max_length: int) -> dict[str, Any]:
    """The contents of `tokenizer_config.json`. `max_length`: tokens that the model can attend to."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": END_OF_MESSAGE,
        "pad_token": PADDING,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,
        "model_max_length": max_length,
        "padding_side": "right",
    }
