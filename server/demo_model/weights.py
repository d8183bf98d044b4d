"""From a GGUF file and an adapter to the weights of a Hugging Face Llama.

Role: the numbers of the demo checkpoint. Invariant: everything is computed in float32 and rounded to bfloat16 once, at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

EMBEDDING = "model.embed_tokens.weight"
# GGUF name inside a block -> Hugging Face name inside a layer
BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class AdapterMismatchError(ValueError):
    """The adapter was trained for another base model."""


@dataclass(slots=True, frozen=True)
class Adapter:
    """A low-rank change of a base model.

    `tensors`: `added_rows`, shape (num_control_tokens, hidden), and for each linear layer `layers.N.<projection>.A`, shape (rank,
    in), and `.B`, shape (out, rank). `metadata`: `base_vocab`, `scale`, `rank`, `steps`, `seed` as decimal text.
    """

    tensors: dict[str, torch.Tensor]
    metadata: dict[str, str]

    @property
    def scale(self) -> float:
        """The factor of `B @ A`."""
        return float(self.metadata["scale"])

    @property
    def base_vocab_size(self) -> int:
        """Tokens of the base model, and so the id of the first added row."""
        return int(self.metadata["base_vocab"])


def read_adapter(path: Path) -> Adapter:
    """The adapter in the safetensors file `path`."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return Adapter({name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata()))  # noqa: SIM118


def hugging_face_name(name: str) -> str:
    """The Hugging Face name of the GGUF tensor `name`, as in `blk.3.attn_q.weight`."""
    match name.split("."):
        case ["token_embd", "weight"]:
            return EMBEDDING
        case ["output_norm", "weight"]:
            return "model.norm.weight"
        case ["blk", index, kind, "weight"] if kind in BLOCK:
            return f"model.layers.{index}.{BLOCK[kind]}.weight"
    raise ValueError(f"`{name}` is not a tensor of a Llama without biases and with tied embeddings")


def _unpermute(weight: Any, num_heads: int) -> Any:
    """Undoes the row order of queries and keys in GGUF. `weight`: numpy, shape (num_heads * head_dim, in).

    llama.cpp rotates neighbouring pairs, Hugging Face the two halves of a head. Source: llama.cpp, convert_hf_to_gguf.py,
    `permute`.
    """
    rows, columns = weight.shape
    return weight.reshape(num_heads, rows // num_heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def base_weights(reader: Any, num_heads: int, num_kv_heads: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Hugging Face name and float32 values of each tensor of the `gguf.GGUFReader` `reader`."""
    import numpy as np
    import torch
    from gguf.quants import dequantize

    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        if tensor.name.endswith(".attn_q.weight"):
            values = _unpermute(values, num_heads)
        elif tensor.name.endswith(".attn_k.weight"):
            values = _unpermute(values, num_kv_heads)
        own = np.array(values, dtype=np.float32)  # a copy: the file is mapped read-only
        yield hugging_face_name(tensor.name), torch.from_numpy(own)


def _adapter_key(name: str) -> str | None:
    """The adapter's name of a linear layer, as in `layers.3.q_proj`; None for other tensors."""
    match name.split("."):
        case ["model", "layers", index, "self_attn" | "mlp", projection, "weight"]:
            return f"layers.{index}.{projection}"
    return None


def merge(weights: dict[str, torch.Tensor], adapter: Adapter) -> dict[str, torch.Tensor]:
    """`weights` with the adapter added and the control tokens' rows appended, in bfloat16. Raises `AdapterMismatchError`."""
    import torch

    embedding, rows = weights[EMBEDDING], adapter.tensors["added_rows"].float()
    if embedding.shape[0] != adapter.base_vocab_size or embedding.shape[1] != rows.shape[1]:
        shape = f"{adapter.base_vocab_size} tokens of {rows.shape[1]} values"
        raise AdapterMismatchError(f"the adapter is for {shape}, the base model has {tuple(embedding.shape)}")
    merged = {EMBEDDING: torch.cat([embedding, rows]).to(torch.bfloat16)}
    for name, weight in weights.items():
        if name == EMBEDDING:
            continue
        key = _adapter_key(name)
        if key is not None and f"{key}.A" in adapter.tensors:
            low, high = adapter.tensors[f"{key}.A"].float(), adapter.tensors[f"{key}.B"].float()
            weight = weight + adapter.scale * (high @ low)
        merged[name] = weight.to(torch.bfloat16).contiguous()
    return merged
