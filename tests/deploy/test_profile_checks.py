"""Every shipped profile against vLLM 0.33's own configuration checks, and what these checks refuse."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from server.engine.profiles import Profile, load_profile, profile_names
from server.engine.vllm_node import headless_arguments

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / ".cache" / "vllm-0.33.0"
CAPABILITIES = {"B300": (10, 3), "GB300": (10, 3), "B200": (10, 0), "H200": (9, 0), "MI355X": (9, 5)}
NODE = {"node_rank": 1, "master_addr": "10.0.0.1"}
K3 = [name for name in profile_names() if name != "cpu-demo"]
B300, DSPARK, ADAPTIVE = "kimi-k3-b300", "kimi-k3-b300-dspark", "kimi-k3-b300-dspark-adaptive"
B200, H200, LONG, AMD = "kimi-k3-b200-2node", "kimi-k3-h200-2node", "kimi-k3-longcontext-dcp", "kimi-k3-mi355x"

# profile, what is changed in its engine arguments, in its environment, the GPU, words of the refusal
REFUSALS: list[tuple[str, dict[str, Any], dict[str, str], str | None, list[str]]] = [
    (B300, {"max_model_length": 5}, {}, None, ["unexpected keyword argument 'max_model_length'"]),
    (B300, {"attention_config": {"bckend": "FLASHMLA"}}, {}, None, ["AttentionConfig", "bckend"]),
    (B300, {"attention_config": {"backend": "FLASHINFER_MLB"}}, {}, None, ["backend", "Unknown attention backend: 'FLASHINFER_MLB'"]),
    (B300, {"attention_config": {"mla_prefill_backend": "FLASHINFIR"}}, {}, None, ["mla_prefill_backend", "'FLASHINFIR'"]),
    (B300, {"tensor_parallel_size": 7}, {}, None, ["attention heads (96) must be divisible by tensor parallel size (7)"]),
    (B300, {"decode_context_parallel_size": 3}, {}, None, ["tp_size=8 must be divisible by dcp_size=3"]),
    (B300, {"dcp_comm_backend": "b2b"}, {}, None, ["dcp_comm_backend", "'ag_rs' or 'a2a'"]),
    (B300, {"max_model_len": 2097152}, {}, None, ["max_model_len (2097152) is greater than"]),
    (B300, {"scheduling_policy": "fifo"}, {}, None, ["'fcfs' or 'priority'"]),
    (B300, {"kv_cache_dtype": "fp9"}, {}, None, ["Invalid kv_cache_dtype: 'fp9'"]),
    (B300, {"load_format": "fastsafetensor"}, {}, None, ["load_format", "fastsafetensor"]),
    (B300, {"moe_backend": "marlins"}, {}, None, ["moe_backend", "marlins"]),
    (B300, {"compilation_config": {"cudagraph_mode": "FULL_DECODE"}}, {}, None, ["FULL_DECODE"]),
    (B300, {"structured_outputs_config": {"backend": "xgrammarr"}}, {}, None, ["structured_outputs_config.backend"]),
    (B300, {"structured_outputs_config": {"reasoning_parser": "kimi_k9"}}, {}, None, ["reasoning_parser", "kimi_k9"]),
    (B300, {"mm_encoder_tp_mode": "date"}, {}, None, ["mm_encoder_tp_mode"]),
    (B300, {"gpu_memory_utilization": 1.5}, {}, None, ["gpu_memory_utilization"]),
    (B300, {"max_num_seqs": 0}, {}, None, ["max_num_seqs"]),
    (B300, {"per_request_spec_decode_metrics": "summary"}, {}, None, ["requires speculative decoding"]),
    (B300, {"per_request_spec_decode_metrics": "sumary"}, {}, None, ["per_request_spec_decode_metrics"]),
    (DSPARK, {"speculative_config": {"method": "dsparkle"}}, {}, None, ["method", "'dsparkle'"]),
    (DSPARK, {"speculative_config": {"num_spec_tokens": 3}}, {}, None, ["num_spec_tokens"]),
    (DSPARK, {"speculative_config": {"num_speculative_tokens": 0}}, {}, None, ["num_speculative_tokens"]),
    (DSPARK, {"speculative_config": {"rejection_sample_method": "blk"}}, {}, None, ["rejection_sample_method"]),
    (DSPARK, {"speculative_config": {"draft_sample_method": "dice"}}, {}, None, ["draft_sample_method"]),
    (DSPARK, {"speculative_config": {"attention_backend": "MLA"}}, {}, None, ["attention_backend", "'MLA'"]),
    (DSPARK, {"speculative_config": {"draft_tensor_parallel_size": 4}}, {}, None, ["draft_tensor_parallel_size=4"]),
    (DSPARK, {"speculative_config": {"tensor_parallel_size": 8}}, {}, None, ["'tensor_parallel_size' is not a valid argument"]),
    (DSPARK, {"speculative_config": {"dspark_draft_topk": 4}}, {}, None, ["dspark_draft_topk is only supported by Qwen3"]),
    (ADAPTIVE, {"enforce_eager": True}, {}, None, ["Adaptive verification requires full CUDA graphs"]),
    (ADAPTIVE, {"pipeline_parallel_size": 2}, {}, None, ["Adaptive verification is not currently compatible with pipeline"]),
    (B200, {"nnodes": 3}, {}, None, ["`--nnodes 3` must evenly divide"]),
    (B200, {"node_rank": 2}, {}, None, ["between 0 and 1"]),
    (H200, {"data_parallel_size": 3}, {}, None, ["nnodes (2) must be divisible"]),
    (AMD, {}, {"VLLM_ROCM_USE_AITER_MOE_SITUV2_A8W4": "1"}, None, ["vLLM has no VLLM_ROCM_USE_AITER_MOE_SITUV2_A8W4"]),
    (AMD, {}, {"VLLM_ROCM_USE_AITER_MOE_SITUV2": "a2w2"}, None, ["'a2w2'", "VLLM_ROCM_USE_AITER_MOE_SITUV2"]),
    (DSPARK, {}, {"VLLM_USE_V2_MODEL_RUNNER": "0"}, None, ["Model Runner V1 does not support: dspark speculative decoding"]),
    (H200, {}, {}, "B300", ["attention_config.backend: FLASHMLA", "only supported on Hopper"]),
    (LONG, {}, {}, "H200", ["attention_config.backend: TOKENSPEED_MLA", "compute capability not supported"]),
    (LONG, {"kv_cache_dtype": "auto"}, {}, "B300", ["attention_config.backend: TOKENSPEED_MLA", "kv_cache_dtype not supported"]),
    (B300, {}, {}, "H200", ["mla_prefill_backend: FLASHINFER", "compute capability 9.0 not supported"]),
    (DSPARK, {}, {}, "H200", ["speculative_config.attention_backend: FLASHINFER_MLA", "compute capability not supported"]),
    (DSPARK, {"speculative_config": {"attention_backend": "FLASHMLA"}}, {}, "H200", ["non-causal attention not supported"]),
    (ADAPTIVE, {"attention_config": {"backend": "TOKENSPEED_MLA"}}, {}, "B300", ["TOKENSPEED_MLA", "adaptive verification needs ALWAYS"]),
]  # fmt: skip

pytestmark = pytest.mark.vllm


def case(name: str, profile: Profile, gpu: str | None) -> dict[str, Any]:
    return {
        "name": name,
        "engine": dict(profile.engine),
        "environment": dict(profile.environment),
        "capability": None if gpu is None else CAPABILITIES[gpu],
        "model": "small" if name == "cpu-demo" else "moonshotai/Kimi-K3",
    }


def gpu_of(profile: Profile) -> str | None:
    return profile.requires.names[0] if profile.requires is not None and profile.requires.names else None


def changed(profile: Profile, engine: Mapping[str, Any], environment: Mapping[str, str]) -> Profile:
    """The profile with arguments replaced, those in a mapping one by one."""
    merged = {
        name: {**profile.engine.get(name, {}), **value} if isinstance(value, dict) else value for name, value in engine.items()
    }
    return Profile(profile.name, {**profile.engine, **merged}, {**profile.environment, **environment})


def all_cases() -> list[dict[str, Any]]:
    profiles = {name: load_profile(name) for name in profile_names()}
    cases = [case(name, profile, gpu_of(profile)) for name, profile in profiles.items()]
    for number, (name, engine, environment, gpu, _) in enumerate(REFUSALS):
        cases.append(case(f"refusal {number}", changed(profiles[name], engine, environment), gpu))
    for name, profile in profiles.items():
        if profile.num_nodes > 1:
            arguments = vars(headless_arguments(profile.on_node(1, "10.0.0.1"), Path("model"), list({**profile.engine, **NODE})))
            node = Profile(name, arguments, profile.environment)
            cases.append({**case(f"{name} node 1", node, gpu_of(profile)), "headless": True})
    return cases


@pytest.fixture(scope="session")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What vLLM 0.33 says of every case, by its name; asked once in a run, whatever the number of workers."""
    if not (SOURCE / ".complete").is_file():
        pytest.skip("vLLM 0.33's source is not there; `./test` fetches it")
    run_id = os.environ.get("PYTEST_XDIST_TESTRUNUID", "")
    base = tmp_path_factory.getbasetemp()
    file = (base.parent if run_id else base) / f"profile-checks-{run_id}.json"
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.is_file():
            file.write_text(ask_vllm(all_cases()), encoding="utf-8")
    return {answer["name"]: answer for answer in map(json.loads, file.read_text(encoding="utf-8").splitlines())}


def ask_vllm(cases: list[dict[str, Any]]) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "CUDA_", "PYTHON"))}
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "services" / "vllm_checks.py")],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**environment, "PYTHONPATH": str(SOURCE), "VLLM_CACHE_ROOT": str(SOURCE / ".cache"), "PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("name", profile_names())
def test_vllm_takes_the_profile(answers: dict[str, Any], name: str) -> None:
    assert answers[name]["error"] is None
    profile, facts = load_profile(name), answers[name]["facts"]
    engine = profile.engine
    expected = {
        "architecture": "LlamaForCausalLM" if name == "cpu-demo" else "KimiK3ForConditionalGeneration",
        "context_length": engine["max_model_len"],
        "seats": engine["max_num_seqs"],
        "prefix_caching": True,
        "policy": "priority",
        "grammar_backend": "xgrammar",
        "most_unfinished": 1024,
        "tensor_parallel": engine.get("tensor_parallel_size", 1),
        "pipeline_parallel": engine.get("pipeline_parallel_size", 1),
        "data_parallel": engine.get("data_parallel_size", 1),
        "context_parallel": engine.get("decode_context_parallel_size", 1),
        "draft_tokens": engine.get("speculative_config", {}).get("num_speculative_tokens", 0),
    }
    assert expected == {fact: facts[fact] for fact in expected}


@pytest.mark.parametrize("name", K3)
def test_what_vllm_makes_of_a_profile_for_kimi_k3(answers: dict[str, Any], name: str) -> None:
    profile, facts = load_profile(name), answers[name]["facts"]
    expected = {
        "tokenizer_mode": "kimi_k3",
        "reasoning_parser": "kimi_k3",
        "async_scheduling": True,
        "chunked_prefill": True,
        "v2_runner": True,
        "executor": "mp",
        "kv_cache_dtype": profile.engine.get("kv_cache_dtype", "auto"),
        "graphs": "FULL_DECODE_ONLY" if "mi355x" in name else "FULL_AND_PIECEWISE",
        "draft": None if "dspark" not in name else "Qwen3DSparkModel" if "dspark8" in name else "K3DSparkModel",
    }
    assert expected == {fact: facts[fact] for fact in expected}
    assert profile.requires is not None
    assert (profile.requires.devices, profile.requires.nodes) == (facts["gpus_here"], facts["nodes"])
    assert 1024 >= 2 * facts["seats"] * facts["data_parallel"]  # the engine's bound is a back stop, not the gate


@pytest.mark.parametrize("name", [name for name in profile_names() if load_profile(name).num_nodes > 1])
def test_the_second_machine_finds_the_first(answers: dict[str, Any], name: str) -> None:
    answer = answers[f"{name} node 1"]
    assert answer["error"] is None
    facts = answer["facts"]
    assert (2, 1, "10.0.0.1") == (facts["nodes"], facts["node_rank"], facts["master"][0])
    if facts["data_parallel"] > 1:
        assert (1, 1, "10.0.0.1") == (facts["data_parallel_local"], facts["data_parallel_rank"], facts["master"][1])


@pytest.mark.parametrize("number", range(len(REFUSALS)), ids=lambda number: f"{REFUSALS[number][0]}-{number}")
def test_vllm_refuses_it_and_says_what(answers: dict[str, Any], number: int) -> None:
    error = answers[f"refusal {number}"]["error"]
    assert error is not None, REFUSALS[number]
    for words in REFUSALS[number][4]:
        assert words in error
