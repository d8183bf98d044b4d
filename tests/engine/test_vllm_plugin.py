"""The cures of the CPU build, each against the plain meaning of what it replaces."""

from __future__ import annotations

from typing import Any

import pytest

from server.engine import vllm_plugin

pytestmark = pytest.mark.vllm


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64"])
@pytest.mark.parametrize("counts", [[1], [0], [2, 3, 1], [0, 0], [0, 4, 0, 1]])
def test_values_are_expanded_to_tokens(torch: Any, dtype: str, counts: list[int]) -> None:
    values = torch.arange(len(counts)).to(getattr(torch, dtype))
    expanded = vllm_plugin.expand_batch_to_tokens(values, torch.tensor(counts).cumsum(0).int(), sum(counts), 0, 7)

    expected = [7 if index == 0 else index for index, count in enumerate(counts) for _ in range(count)]
    assert expanded.tolist() == expected
    assert expanded.dtype == values.dtype


def test_vllm_finds_the_plugin() -> None:
    assert vllm_plugin.is_installed()
