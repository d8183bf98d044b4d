"""A model that sees, small enough for tests: vLLM's own Llama behind one linear layer for patches, and Kimi K3's own image processor.

Copied to where vLLM's processes find it, as a plugin of theirs: it must not import anything of the tests or the gateway. K3's own
architecture has kernels for GPUs only; everything up to the model itself, in the gateway's process, is K3's here.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import vllm
from torch import nn
from transformers import LlamaConfig
from vllm.config import VllmConfig
from vllm.model_executor.models.interfaces import SupportsMultiModal
from vllm.model_executor.models.registry import ModelRegistry
from vllm.model_executor.models.utils import AutoWeightsLoader, init_vllm_registered_model, maybe_prefix
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.transformers_utils import config as vllm_configs
from vllm.transformers_utils.configs.kimi_k3 import KimiK3Config
from vllm.triton_utils import dispatcher

ARCHITECTURE = "TinyVisionForConditionalGeneration"
K3_PACKAGE = "vllm.models.kimi_k3"
MERGE = 2
NUM_PIXEL_VALUES = 3 * 14 * 14  # of a patch


def k3_preprocessing() -> ModuleType:
    """vLLM's module of what K3 does with images before the model, without its package, which imports the model and its kernels."""
    package = ModuleType(K3_PACKAGE)
    package.__path__ = [str(Path(vllm.__file__).parent / "models" / "kimi_k3")]
    before = sys.modules.get(K3_PACKAGE)
    sys.modules[K3_PACKAGE] = before or package
    try:
        return importlib.import_module(f"{K3_PACKAGE}.common.mm_preprocess")
    finally:
        if before is None:
            del sys.modules[K3_PACKAGE]


preprocessing = k3_preprocessing()


class TinyVisionConfig(KimiK3Config):
    """K3's configuration with a Llama for its text."""

    model_type = "tiny_vision"

    def __init__(self, text_config: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(text_config=LlamaConfig(**(text_config or {})), **kwargs)


@MULTIMODAL_REGISTRY.register_processor(
    preprocessing.KimiK3MultiModalProcessor,
    info=preprocessing.KimiK3ProcessingInfo,
    dummy_inputs=preprocessing.KimiK3DummyInputsBuilder,
)
class TinyVisionForConditionalGeneration(nn.Module, SupportsMultiModal):
    """Each token of an image is a linear function of the pixels below it."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        with self._mark_tower_model(vllm_config, "image"):
            self.patches = nn.Linear(MERGE * MERGE * NUM_PIXEL_VALUES, config.text_config.hidden_size, bias=False)
        with self._mark_language_model(vllm_config):
            self.language_model = init_vllm_registered_model(
                vllm_config=vllm_config,
                hf_config=config.text_config,
                prefix=maybe_prefix(prefix, "language_model"),
                architectures=["LlamaForCausalLM"],
            )
        self.make_empty_intermediate_tensors = self.language_model.make_empty_intermediate_tensors

    @classmethod
    def get_placeholder_str(cls, modality: str, i: int) -> str | None:
        return "<|kimi_image_placeholder|>"

    def embed_multimodal(self, pixel_values: torch.Tensor, grid_thws: torch.Tensor, **_: Any) -> list[torch.Tensor]:
        """One tensor an image, shape (tokens of the image, hidden_size); `pixel_values` has all images' patches, row by row."""
        embeddings, start = [], 0
        for _, high, wide in grid_thws.tolist():
            patches = pixel_values[start : start + high * wide]
            start += high * wide
            cells = patches.reshape(high // MERGE, MERGE, wide // MERGE, MERGE, NUM_PIXEL_VALUES).transpose(1, 2)
            embeddings.append(self.patches(cells.reshape(-1, MERGE * MERGE * NUM_PIXEL_VALUES).to(self.patches.weight.dtype)))
        return embeddings

    def forward(
        self, input_ids: Any, positions: Any, intermediate_tensors: Any = None, inputs_embeds: Any = None, **_: Any
    ) -> torch.Tensor:
        return self.language_model.model(input_ids, positions, intermediate_tensors, inputs_embeds=inputs_embeds)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        return self.language_model.compute_logits(hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        return AutoWeightsLoader(self).load_weights(weights)


def cure_dispatcher() -> None:
    """Have vLLM's worker start on a CPU where numba is loaded, which K3's image processor uses.

    The worker looks for its kernels through all that all modules hold, and vLLM 0.32 fails on an object of llvmlite's there.
    """
    rebind = dispatcher._rebind_kernels

    def rebind_elsewhere(overrides: Sequence[tuple[Any, Any]]) -> None:
        hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith("llvmlite")}
        try:
            rebind(overrides)
        finally:
            sys.modules.update(hidden)

    dispatcher._rebind_kernels = rebind_elsewhere


def register() -> None:
    """Called by vLLM in each of its processes."""
    cure_dispatcher()
    vllm_configs._CONFIG_REGISTRY[TinyVisionConfig.model_type] = TinyVisionConfig
    ModelRegistry.register_model(ARCHITECTURE, TinyVisionForConditionalGeneration)
