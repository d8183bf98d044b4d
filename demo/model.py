"""A Llama for training a low-rank adapter on a CPU: the base weights are frozen in bfloat16, the adapter is float32.

Role: the forward pass and nothing else; serving is vLLM's. Plain torch, so that what is trained does not depend on another
library's version. Invariant: with a new adapter (`B` = 0) the logits of base tokens are the base model's.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from demo.batch import Batch

PROJECTIONS = {
    "q_proj": "self_attn", "k_proj": "self_attn", "v_proj": "self_attn", "o_proj": "self_attn",
    "gate_proj": "mlp", "up_proj": "mlp", "down_proj": "mlp",
}  # fmt: skip


_MULTIPLE = 128
_IGNORED = -100


class AdaptedLinear(nn.Module):
    """`x @ W.T + scale * x @ A.T @ B.T`. `weight`, frozen: shape (out, in); `A`: (rank, in); `B`: (out, rank)."""

    def __init__(self, weight: Tensor, rank: int, scale: float) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.weight = weight
        self.scale = scale
        self.A = nn.Parameter(torch.empty(rank, columns).uniform_(-1, 1) * math.sqrt(3 / columns))
        self.B = nn.Parameter(torch.zeros(rows, rank))

    def forward(self, x: Tensor) -> Tensor:
        """`x`: shape (num_tokens, in)."""
        low = F.linear(x, self.A.to(x.dtype))
        return torch.addmm(F.linear(x, self.weight), low, (self.B * self.scale).to(x.dtype).t())


class AdaptedLlama(nn.Module):
    """The model in the folder `path`, a checkpoint with tied embeddings, whose last `added` tokens are to be trained."""

    def __init__(self, path: Path, added: int, rank: int, scale: float) -> None:
        super().__init__()
        self.config: dict[str, Any] = json.loads((path / "config.json").read_text())
        weights = load_file(path / "model.safetensors")
        embedding = weights["model.embed_tokens.weight"]
        self.num_layers = int(self.config["num_hidden_layers"])
        self.num_heads = int(self.config["num_attention_heads"])
        self.num_kv_heads = int(self.config["num_key_value_heads"])
        self.head_size = int(self.config["hidden_size"]) // self.num_heads
        self.embedding = embedding[:-added]
        self.rows = nn.Parameter(embedding[:-added].float().mean(0).repeat(added, 1))
        self.norms = {name: weight for name, weight in weights.items() if "norm" in name}
        self.linears = nn.ModuleDict()
        for layer in range(self.num_layers):
            for name, group in PROJECTIONS.items():
                weight = weights[f"model.layers.{layer}.{group}.{name}.weight"]
                self.linears[f"{layer}_{name}"] = AdaptedLinear(weight, rank, scale)

    def adapter(self) -> dict[str, Tensor]:
        """The trained tensors in bfloat16, by the names that `server/demo_model/weights.py` reads."""
        found = {"added_rows": self.rows}
        for name, linear in self.linears.items():
            layer, projection = name.split("_", 1)
            found |= {f"layers.{layer}.{projection}.A": linear.A, f"layers.{layer}.{projection}.B": linear.B}
        return {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in found.items()}

    def loss(self, batch: Batch) -> Tensor:
        """Mean cross-entropy of the trained tokens."""
        hidden = self.hidden(batch)[:-1]
        targets = batch.token_ids[1:]
        kept = batch.trained[1:]
        # Filled up to few different sizes, for the reason in `batch.py`.
        hidden = F.pad(hidden[kept], (0, 0, 0, -int(kept.sum()) % _MULTIPLE))
        targets = F.pad(targets[kept], (0, -int(kept.sum()) % _MULTIPLE), value=_IGNORED)
        logits = torch.cat([F.linear(hidden, self.embedding), F.linear(hidden, self.rows.to(hidden.dtype))], -1)
        return F.cross_entropy(logits.float(), targets, ignore_index=_IGNORED)

    def hidden(self, batch: Batch) -> Tensor:
        """The last hidden state of each token, shape (num_tokens, hidden)."""
        base_size = self.embedding.shape[0]
        added = batch.token_ids >= base_size
        base = F.embedding(batch.token_ids.masked_fill(added, 0), self.embedding)
        own = F.embedding((batch.token_ids - base_size).clamp_min(0), self.rows).to(base.dtype)
        x = torch.where(added[:, None], own, base)
        cos, sin = self._rotation(batch.positions)
        for layer in range(self.num_layers):
            name = f"model.layers.{layer}"
            x = x + self._attention(layer, self._norm(x, f"{name}.input_layernorm.weight"), cos, sin, batch)
            h = self._norm(x, f"{name}.post_attention_layernorm.weight")
            gated = F.silu(self.linears[f"{layer}_gate_proj"](h)) * self.linears[f"{layer}_up_proj"](h)
            x = x + self.linears[f"{layer}_down_proj"](gated)
        return self._norm(x, "model.norm.weight")

    def _attention(self, layer: int, x: Tensor, cos: Tensor, sin: Tensor, batch: Batch) -> Tensor:
        def heads(name: str, count: int) -> Tensor:
            out: Tensor = self.linears[f"{layer}_{name}"](x)
            return out.view(len(x), count, self.head_size).transpose(0, 1)

        query = _rotated(heads("q_proj", self.num_heads), cos, sin)
        key = _rotated(heads("k_proj", self.num_kv_heads), cos, sin)
        value = heads("v_proj", self.num_kv_heads)
        merged: Tensor = self.linears[f"{layer}_o_proj"](_seen(query, key, value, batch).transpose(0, 1).reshape(len(x), -1))
        return merged

    def _norm(self, x: Tensor, name: str) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + float(self.config["rms_norm_eps"]))
        return self.norms[name] * scaled.to(x.dtype)

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        steps = torch.arange(0, self.head_size, 2, dtype=torch.float32) / self.head_size
        angles = positions[:, None].float() / float(self.config["rope_theta"]) ** steps
        angles = torch.cat([angles, angles], -1)
        return angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`x`: shape (heads, num_tokens, head_size); the two halves of a head are the two coordinates."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def _seen(query: Tensor, key: Tensor, value: Tensor, batch: Batch) -> Tensor:
    """Attention of each part over what it sees. Shapes (heads, num_tokens, head_size), with fewer heads in `key` and `value`."""
    sizes = [part.size for row in batch.rows for part in row]
    repeat = query.shape[0] // key.shape[0]
    queries = iter(query.split(sizes, 1))
    keys = iter(key.repeat_interleave(repeat, 0).split(sizes, 1))
    values = iter(value.repeat_interleave(repeat, 0).split(sizes, 1))
    found: list[Tensor] = []
    for row in batch.rows:
        prefix_key = prefix_value = query[:, :0]
        for part in row:
            q, k, v = next(queries), next(keys), next(values)
            if not part.size:
                continue
            if part.sees_prefix:
                k, v = torch.cat([prefix_key, k], 1), torch.cat([prefix_value, v], 1)
            else:
                prefix_key, prefix_value = k, v
            earlier = torch.ones(part.size, k.shape[1], dtype=torch.bool).tril(k.shape[1] - part.size)
            found.append(F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=earlier[None, None])[0])
    return torch.cat(found, 1)
