"""A checkpoint of a tiny model that sees, with random weights, and the plugin by which vLLM knows its architecture."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from server import environment
from server.engine.profiles import Profile, load_profile

MODULE = "k3gw_tiny_vision"
CONTEXT_LENGTH = 8192
MOST_IMAGES = 4
MEDIA_PAD = "<|media_pad|>"
# Kimi K3's own values.
MEDIA_RULE: dict[str, Any] = {
    "patch_size": 14,
    "merge_kernel_size": 2,
    "in_patch_limit": 65_536,
    "patch_limit_on_one_side": 512,
    "fixed_output_tokens": None,
}
_PROCESSING: dict[str, Any] = {
    "temporal_merge_kernel_size": 4,
    "in_patch_limit_each_frame": None,
    "in_patch_limit_video": None,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "transparent_bg_config": {
        "pattern": "chessboard",
        "chessboard_square_size": 8,
        "chessboard_square_on_top_left": True,
        "chessboard_white_value": 255,
        "chessboard_gray_value": 180,
    },
    "transparent_bg_fill_stage": "after_resize",
}
HIDDEN, INNER, NUM_LAYERS, NUM_HEADS = 64, 128, 2, 2
_NUM_CELL_VALUES = 2 * 2 * 3 * 14 * 14


def profile() -> Profile:
    """The profile that ships for CPUs, without what costs time here. Few images a prompt, and small ones to warm up with."""
    limits = {"image": {"count": MOST_IMAGES, "width": 56, "height": 56}}
    overrides = {"dtype": "float32", "speculative_config": None, "limit_mm_per_prompt": limits, "skip_mm_profiling": True}
    return load_profile("cpu-demo", {**overrides, "max_num_seqs": 32, "mm_processor_cache_gb": 0.05})


def install_plugin(folder: Path, profile: Profile) -> None:
    """Put the architecture into `folder` as an installed package, which must be on the path of every process, and register it here.

    vLLM loads plugins once in a process, maybe before this. `profile`: whose environment vLLM is to be imported in.
    """
    environment.apply(profile.environment)
    shutil.copy(Path(__file__).with_name("tiny_vision_model.py"), folder / f"{MODULE}.py")
    info = folder / f"{MODULE}-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {MODULE}\nVersion: 0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{MODULE} = {MODULE}:register\n", encoding="utf-8")
    assert str(folder) in sys.path
    importlib.import_module(MODULE).register()


def write_checkpoint(folder: Path, demo_model: Path, seed: int = 7) -> None:
    """The model in `folder`, with the tokenizer of `demo_model`, whose vocabulary has K3's control tokens."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo_model / name, folder / name)
    demo = json.loads((demo_model / "config.json").read_text(encoding="utf-8"))
    added = json.loads((demo_model / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    text = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_HEADS,
        "vocab_size": demo["vocab_size"],
        "max_position_embeddings": CONTEXT_LENGTH,
        "tie_word_embeddings": False,
    }
    ends = {"eos_token_id": demo["eos_token_id"], "pad_token_id": demo["pad_token_id"]}
    config = {
        "architectures": ["TinyVisionForConditionalGeneration"],
        "model_type": "tiny_vision",
        "torch_dtype": "float32",
        "text_config": {**text, **ends},
        "media_placeholder_token_id": next(token["id"] for token in added if token["content"] == MEDIA_PAD),
        **ends,
    }
    _write(folder / "config.json", config)
    _write(folder / "generation_config.json", {"eos_token_id": demo["eos_token_id"]})
    _write(folder / "preprocessor_config.json", {"media_proc_cfg": {**MEDIA_RULE, **_PROCESSING}})
    _write_weights(folder / "model.safetensors", demo["vocab_size"], seed)


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def _write_weights(path: Path, vocab_size: int, seed: int) -> None:
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)

    def matrix(num_out: int, num_in: int, scale: float = 1.0) -> Any:
        return torch.randn(num_out, num_in, generator=generator) * scale / num_in**0.5

    weights = {"patches.weight": matrix(HIDDEN, _NUM_CELL_VALUES)}
    model = "language_model.model"
    weights[f"{model}.embed_tokens.weight"] = matrix(vocab_size, HIDDEN, HIDDEN**0.5)
    weights[f"{model}.norm.weight"] = torch.ones(HIDDEN)
    weights["language_model.lm_head.weight"] = matrix(vocab_size, HIDDEN)
    for layer in (f"{model}.layers.{i}" for i in range(NUM_LAYERS)):
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{layer}.{name}.weight"] = torch.ones(HIDDEN)
        for name in ("q_proj", "k_proj", "v_proj"):
            weights[f"{layer}.self_attn.{name}.weight"] = matrix(HIDDEN, HIDDEN, 2.0)
        # What a token takes from the others weighs more than itself, so that an answer depends on the whole prompt.
        weights[f"{layer}.self_attn.o_proj.weight"] = matrix(HIDDEN, HIDDEN, 4.0)
        for name in ("gate_proj", "up_proj"):
            weights[f"{layer}.mlp.{name}.weight"] = matrix(INNER, HIDDEN)
        weights[f"{layer}.mlp.down_proj.weight"] = matrix(HIDDEN, INNER)
    save_file(weights, path)
