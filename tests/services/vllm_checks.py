"""vLLM's own configuration checks of engine profiles, with no GPU, no weights and no network.

Run as a program, with the vLLM to be asked first on PYTHONPATH: cases come as JSON on stdin, a line of JSON for each goes to
stdout. A case is {"name", "engine", "environment", "capability", "model"}, and "headless" where the arguments are those of a machine
without a gateway; the answer {"name", "error", "facts"}.

vLLM's platforms rewrite a configuration for the machine they find, which here is a CPU and can run none of this. So it is told of a
platform that leaves everything as it is (vLLM's own `UnspecifiedPlatform`), and of GPU libraries that are not there. What only a GPU
tells, memory and kernels, is not checked; what attention backends say of themselves for a GPU's compute capability is.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import inspect
import json
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any, get_args
from unittest.mock import MagicMock

GPU_LIBRARIES = ("flashinfer", "tokenspeed_mla", "flash_mla")
FULL_ATTENTION = [*range(4, 93, 4), 93]  # every fourth layer and the last, counted from 1
MLA = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
VOCABULARY = {"vocab_size": 163840, "bos_token_id": 163584, "eos_token_id": 163586, "pad_token_id": 163839}
TARGET = {
    "architectures": ["KimiK3ForConditionalGeneration"],
    "model_type": "kimi_k3",
    "dtype": "bfloat16",
    "media_placeholder_token_id": 163605,
    "vision_config": {"model_type": "kimi_k3_vision", "vt_num_hidden_layers": 27},
    "text_config": {
        "model_type": "kimi_linear", "hidden_size": 7168, "intermediate_size": 33792, "num_hidden_layers": 93,
        "num_attention_heads": 96, "num_key_value_heads": 96, "head_dim": 128, "max_position_embeddings": 1048576,
        "num_experts": 896, "num_experts_per_token": 16, "num_shared_experts": 2, "moe_intermediate_size": 3072,
        "routed_expert_hidden_size": 3584, "first_k_dense_replace": 1, "attn_res_block_size": 12, "latent_moe_use_norm": True,
        "mla_use_nope": True, "mla_use_output_gate": True, "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0,
        "linear_attn_config": {
            "kda_layers": [layer for layer in range(1, 94) if layer not in FULL_ATTENTION], "full_attn_layers": FULL_ATTENTION,
            "num_heads": 96, "head_dim": 128, "short_conv_kernel_size": 4, "use_full_rank_gate": True,
        },
        **MLA, **VOCABULARY,
    },
}  # fmt: skip
INFERACT_DRAFT = {
    "architectures": ["K3DSparkModel"], "model_type": "k3_dspark", "hidden_size": 7168, "intermediate_size": 14336,
    "num_hidden_layers": 5, "num_attention_heads": 64, "num_key_value_heads": 64, "max_position_embeddings": 1048576,
    "num_target_layers": 5, "target_hidden_size": 7168, "target_num_hidden_layers": 93, "target_layer_ids": [2, 23, 47, 71, 89],
    "mask_token_id": 163837, "markov_rank": 256, "markov_head_type": "vanilla", "enable_confidence_head": True,
    "confidence_head_with_markov": True, "block_size": 7, "rope_theta": 50000.0, **MLA, **VOCABULARY,
}  # fmt: skip
REDHAT_DRAFT = {
    "architectures": ["DSparkDraftModel"], "speculators_model_type": "dspark", "block_size": 8, "mask_token_id": 163837,
    "draft_vocab_size": 163840, "target_hidden_size": 7168, "aux_hidden_state_layer_ids": [24, 48, 72, 88, 92],
    "markov_rank": 256, "markov_head_type": "vanilla", "enable_confidence_head": True, "confidence_head_with_markov": True,
    "sample_from_anchor": True,
    "speculators_config": {
        "algorithm": "dspark", "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 8}],
        "verifier": {"name_or_path": "moonshotai/Kimi-K3", "architectures": ["KimiK3ForConditionalGeneration"]},
    },
    "transformer_layer_config": {
        "model_type": "qwen3", "hidden_size": 7168, "intermediate_size": 14336, "num_hidden_layers": 5, "head_dim": 64,
        "num_attention_heads": 96, "num_key_value_heads": 16, "max_position_embeddings": 1048576, "vocab_size": 163840,
        "layer_types": ["sliding_attention"] * 5, "sliding_window": 2048, "use_sliding_window": True, "rms_norm_eps": 1e-5,
    },
}  # fmt: skip
SMALL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "vocab_size": 49280,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192,
    "dtype": "bfloat16",
}  # fmt: skip
MODELS = {
    "moonshotai/Kimi-K3": TARGET,
    "Inferact/Kimi-K3-DSpark": INFERACT_DRAFT,
    "RedHatAI/Kimi-K3-speculator.dspark": REDHAT_DRAFT,
    "small": SMALL,
}
"""Configurations of the published checkpoints' shapes; what vLLM's checks don't read is left out."""


class AbsentLibraries(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for libraries of GPUs, which backends import at their top and call only on a GPU."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(fullname, self) if fullname.split(".")[0] in GPU_LIBRARIES else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


def main() -> None:
    cases = json.load(sys.stdin)
    os.environ |= {"VLLM_TARGET_DEVICE": "cpu", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    answers, sys.stdout = sys.stdout, sys.stderr
    import vllm.platforms
    from vllm.platforms.interface import UnspecifiedPlatform

    class Neutral(UnspecifiedPlatform):  # type: ignore[misc]
        device_type = device_name = "cpu"
        capability: Any = None

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return cls.capability

        @classmethod
        def support_static_graph_mode(cls) -> bool:
            return True

        @classmethod
        def get_attn_backend_cls(cls, *_: Any, **__: Any) -> str:
            return ""

    vllm.platforms._current_platform = Neutral()
    sys.meta_path.insert(0, AbsentLibraries())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model, config in MODELS.items():
            (folder / model).mkdir(parents=True)
            (folder / model / "config.json").write_text(json.dumps(config), encoding="utf-8")
        for case in cases:
            print(json.dumps({"name": case["name"], **checked(case, folder)}), file=answers, flush=True)


def checked(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What vLLM says of one case: its error, or what it made of the configuration."""
    import vllm.platforms

    before = dict(os.environ)
    os.environ |= case["environment"] | {"VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "ERROR"}
    try:
        check_environment(case["environment"])
        return {"error": None, "facts": facts_of(case, folder)}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        return {"error": f"{type(error).__name__}: {error}", "facts": {}}
    finally:
        vllm.platforms.current_platform.capability = None
        os.environ.clear()
        os.environ |= before


def check_environment(environment: dict[str, str]) -> None:
    """vLLM only warns of variables that it doesn't know; here they are an error, since a renamed one does nothing."""
    import vllm.envs

    for name in environment:
        if name.startswith("VLLM_") and name not in vllm.envs.environment_variables:
            raise ValueError(f"environment: vLLM has no {name}")
        if name.startswith("VLLM_"):
            getattr(vllm.envs, name)


def facts_of(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import AsyncEngineArgs

    engine = dict(case["engine"])
    if (draft := engine.get("speculative_config")) and draft.get("model") in MODELS:
        engine["speculative_config"] = {**draft, "model": str(folder / draft["model"])}
    engine["model"] = str(folder / case["model"])
    if case.get("headless"):
        from vllm.entrypoints.cli.serve import run_headless

        assert ["args"] == list(inspect.signature(run_headless).parameters)
        config = AsyncEngineArgs.from_cli_args(argparse.Namespace(**engine)).create_engine_config(headless=True)
    else:
        config = AsyncEngineArgs(**engine).create_engine_config()
    check_names(config, engine)
    parallel, scheduler, speculative = config.parallel_config, config.scheduler_config, config.speculative_config
    if case["capability"] is not None:
        with set_current_vllm_config(config):
            check_backends(config, case["capability"])
    return {
        "architecture": config.model_config.architecture,
        "tokenizer_mode": str(config.model_config.tokenizer_mode),
        "context_length": config.model_config.max_model_len,
        "prefix_caching": config.cache_config.enable_prefix_caching,
        "kv_cache_dtype": str(config.cache_config.cache_dtype),
        "block_size": config.cache_config.block_size,
        "policy": scheduler.policy,
        "seats": scheduler.max_num_seqs,
        "most_unfinished": scheduler.max_num_queued_reqs,
        "async_scheduling": scheduler.async_scheduling,
        "chunked_prefill": scheduler.enable_chunked_prefill,
        "v2_runner": config.use_v2_model_runner,
        "executor": str(parallel.distributed_executor_backend),
        "tensor_parallel": parallel.tensor_parallel_size,
        "pipeline_parallel": parallel.pipeline_parallel_size,
        "data_parallel": parallel.data_parallel_size,
        "data_parallel_local": parallel.data_parallel_size_local,
        "data_parallel_rank": parallel.data_parallel_rank,
        "context_parallel": parallel.decode_context_parallel_size,
        "nodes": parallel.nnodes,
        "node_rank": parallel.node_rank,
        "gpus_here": parallel.local_world_size,
        "master": [parallel.master_addr, parallel.data_parallel_master_ip],
        "graphs": config.compilation_config.cudagraph_mode.name,
        "reasoning_parser": config.structured_outputs_config.reasoning_parser,
        "grammar_backend": config.structured_outputs_config.backend,
        "draft": None if speculative is None or speculative.draft_model_config is None else speculative.draft_model_config.architecture,
        "draft_tokens": 0 if speculative is None else speculative.num_speculative_tokens,
    }  # fmt: skip


def check_names(config: Any, engine: dict[str, Any]) -> None:
    """What vLLM looks up when the engine is under way already, in its own lists."""
    from vllm.config.kernel import MoEBackend
    from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER
    from vllm.reasoning import ReasoningParserManager

    parser = config.structured_outputs_config.reasoning_parser
    for name, value, known in (
        ("load_format", str(config.load_config.load_format), _LOAD_FORMAT_TO_MODEL_LOADER),
        ("moe_backend", engine.get("moe_backend", "auto"), get_args(MoEBackend)),
        ("structured_outputs_config.reasoning_parser", parser, ("", *ReasoningParserManager.list_registered())),
    ):
        if value not in known:
            raise ValueError(f"{name}: vLLM has no {value}")


def check_backends(config: Any, capability: list[int]) -> None:
    """Ask the attention backends that are named whether they run this on a GPU of that compute capability."""
    from vllm.platforms import current_platform
    from vllm.platforms.interface import DeviceCapability
    from vllm.v1.attention.backend import AttentionType
    from vllm.v1.attention.backends.mla.prefill.base import MLADimensions
    from vllm.v1.attention.backends.mla.prefill.selector import MLAPrefillSelectorConfig
    from vllm.v1.attention.ops import flashmla

    device, model, speculative = DeviceCapability(*capability), config.model_config, config.speculative_config
    type(current_platform).capability = device
    flashmla._flashmla_C_AVAILABLE = flashmla._flashmla_extension_C_AVAILABLE = True
    named = {"attention_config.backend": (config.attention_config.backend, False)}
    if speculative is not None:
        named["speculative_config.attention_backend"] = (speculative.attention_backend, speculative.method == "dspark")
    for name, (backend, is_draft) in named.items():
        if backend is None:
            continue
        reasons = backend.get_class().validate_configuration(
            head_size=MLA["kv_lora_rank"] + MLA["qk_rope_head_dim"],
            dtype=model.dtype,
            kv_cache_dtype=config.cache_config.cache_dtype,
            block_size=None,
            use_mla=True,
            has_sink=False,
            use_sparse=False,
            use_mm_prefix=False,
            use_per_head_quant_scales=False,
            device_capability=device,
            attn_type=AttentionType.DECODER,
            use_non_causal=is_draft,
            use_dcp=config.parallel_config.decode_context_parallel_size > 1,
            use_adaptive_verification=speculative is not None and speculative.enable_adaptive_verification,
        )
        # What a drafted token is worth is known on the GPU only, so one graph must do for steps of any shape.
        if speculative is not None and speculative.enable_adaptive_verification:
            graphs = backend.get_class().get_builder_cls()._cudagraph_support.name
            reasons += [] if graphs == "ALWAYS" else [f"its graphs are for {graphs}, and adaptive verification needs ALWAYS"]
        if reasons:
            raise ValueError(f"{name}: {backend.name} does not run this: {', '.join(reasons)}")
    prefill = config.attention_config.mla_prefill_backend
    if prefill is not None:
        dimensions = MLADimensions(**{name: MLA[name] for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")})
        wanted = MLAPrefillSelectorConfig(dtype=model.dtype, mla_dimensions=dimensions)
        if reasons := prefill.get_class().validate_configuration(device, wanted):
            raise ValueError(f"attention_config.mla_prefill_backend: {prefill.name} does not run this: {', '.join(reasons)}")


if __name__ == "__main__":
    main()
