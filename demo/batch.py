"""Rows as tensors: token ids, positions, which tokens count, and who sees whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from demo.rows import Row

_MULTIPLE = 128
"""Batches are filled up to a multiple of this: the processor's kernels are prepared anew for every shape."""


@dataclass(slots=True, frozen=True)
class Part:
    """A stretch of tokens with one view: those before it in its row's prefix (`sees_prefix`), and the earlier ones of its own."""

    size: int
    sees_prefix: bool


@dataclass(slots=True, frozen=True)
class Batch:
    """Rows one behind the other, then padding that nothing sees. `token_ids`, `positions`, `trained`: shape (num_tokens,).

    `rows`: the parts of each row, its prefix first. `trained`: whether the loss counts the token.
    """

    token_ids: Tensor
    positions: Tensor
    trained: Tensor
    rows: list[list[Part]]


def batch(rows: Sequence[Row]) -> Batch:
    """The rows as one batch. Positions go on from the prefix in each branch, as they do when the model is served."""
    token_ids: list[int] = []
    positions: list[int] = []
    trained: list[bool] = []
    parts: list[list[Part]] = []
    for row in [*rows, _padding(rows)]:
        start = len(row.prefix)
        token_ids += row.prefix
        positions += range(start)
        trained += [False] * start
        parts.append([Part(start, sees_prefix=False)])
        for branch in row.branches:
            token_ids += branch.token_ids
            positions += range(start, start + len(branch.token_ids))
            trained += branch.trained
            parts[-1].append(Part(len(branch.token_ids), sees_prefix=True))
    return Batch(torch.tensor(token_ids), torch.tensor(positions), torch.tensor(trained), parts)


def _padding(rows: Sequence[Row]) -> Row:
    size = sum(len(row.prefix) + sum(len(branch.token_ids) for branch in row.branches) for row in rows)
    return Row([0] * (-size % _MULTIPLE), [])
