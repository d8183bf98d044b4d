"""`k3-gateway profiles`, `engine-node`, and what `serve` and `check-config` say of a profile, as processes with a PATH of their own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from server.engine.profiles import ProfileError, load_profile, profile_names
from server.engine.vllm_node import headless_arguments

ROOT = Path(__file__).resolve().parents[2]
GPUS = "".join(f"{index}, GPU-{index}, NVIDIA H200, 143771\n" for index in range(8))
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`run("profiles", gpus=…)`: the command line in an empty folder, on a machine whose `nvidia-smi` prints `gpus`."""
    tools = tmp_path / "bin"
    tools.mkdir()

    def run(*arguments: str, gpus: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        if gpus is not None:
            (tools / "nvidia-smi").write_text(f"#!/bin/sh\nprintf %s {shlex.quote(gpus)}\n", encoding="utf-8")
            (tools / "nvidia-smi").chmod(0o755)
        hidden = ("K3GW_", "CUDA_", "HIP_", "ROCR_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        return subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "server", *arguments],
            cwd=tmp_path,
            env={**environment, "PATH": str(tools), "PYTHONPATH": str(ROOT), **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return run


def said(done: subprocess.CompletedProcess[str]) -> str:
    return "".join(line for line in done.stderr.splitlines(keepends=True) if not line.startswith("import time:"))


def imported(done: subprocess.CompletedProcess[str]) -> set[str]:
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


def test_serve_says_what_is_missing_before_anything_is_loaded_or_made(run: Run, tmp_path: Path) -> None:
    done = run("serve", "--profile", "kimi-k3-b300", "--port", "0")
    assert 2 == done.returncode
    assert said(done).startswith(
        "error: the engine profile `kimi-k3-b300` needs 8 NVIDIA GPUs with 260 GiB each (B300); this machine has none "
        "(`nvidia-smi` was not found)."
    )
    assert not {"vllm", "torch", "transformers"} & imported(done)
    assert ["bin"] == [path.name for path in tmp_path.iterdir()]  # no store, no key


def test_a_machine_with_the_gpus_is_told_what_else_is_missing(run: Run) -> None:
    done = run("serve", "--profile", "kimi-k3-h200-2node", "--port", "0", gpus=GPUS, K3GW_ENGINE__OVERRIDES='{"nnodes": 1}')
    assert 2 == done.returncode
    assert "needs 8 NVIDIA" not in said(done)
    assert "vLLM" in said(done) or "engine.model_path" in said(done)


def test_the_check_of_the_machine_can_be_turned_off(run: Run) -> None:
    done = run("serve", "--profile", "kimi-k3-mi355x", "--port", "0", K3GW_ENGINE__CHECK_HARDWARE="false")
    assert 2 == done.returncode
    warning, error = said(done).splitlines()
    assert warning.startswith("warning: K3 on AMD is younger than on NVIDIA")
    assert error.startswith("error: engine.model_path: is not set")


def test_an_engine_of_two_machines_is_not_started_without_an_address(run: Run) -> None:
    done = run("serve", "--profile", "kimi-k3-b200-2node", "--port", "0", K3GW_ENGINE__CHECK_HARDWARE="false")
    assert 2 == done.returncode
    assert said(done).startswith("error: the engine profile `kimi-k3-b200-2node` runs on 2 machines")


def test_profiles_are_listed_with_what_they_need(run: Run) -> None:
    done = run("profiles", gpus=GPUS)
    assert (0, profile_names()) == (done.returncode, [line for line in done.stdout.splitlines() if not line.startswith(" ")])
    assert "needs 8 NVIDIA GPUs with 138 GiB each (H200), on each of 2 machines: this machine has that" in done.stdout
    assert "(B300): this machine has 8 (NVIDIA H200 with 140 GiB)" in done.stdout


def test_those_that_fit_are_listed_for_scripts(run: Run) -> None:
    assert "cpu-demo\n" == run("profiles", "--here").stdout
    assert "cpu-demo\nkimi-k3-h200-2node\n" == run("profiles", "--here", gpus=GPUS).stdout
    b300 = [name for name in profile_names() if "-b300" in name]
    larger = GPUS.replace("H200", "B300 SXM6 AC").replace("143771", "275040")  # these hold what is made for others, too
    assert ["cpu-demo", *b300, "kimi-k3-longcontext-dcp"] == run("profiles", "--here", gpus=larger).stdout.split()


def test_check_config_shows_what_the_engine_would_get(run: Run) -> None:
    done = run("check-config", "--profile", "kimi-k3-b200-2node", K3GW_ENGINE__OVERRIDES='{"max_model_len": 131072}')
    assert 0 == done.returncode
    lines = done.stdout.splitlines()
    assert "profile.engine.max_model_len = 131072  (engine.overrides)" in lines
    assert "profile.engine.pipeline_parallel_size = 2  (kimi-k3-b200-2node)" in lines
    assert "profile.environment.NCCL_CUMEM_ENABLE = '1'  (kimi-k3-b200-2node)" in lines
    assert 3 == sum(line.startswith("note: ") for line in lines)


@pytest.mark.parametrize("command", [["check-config"], ["serve", "--port", "0"]])
def test_bounds_that_are_none_are_named_before_anything_is_loaded(run: Run, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "mine.yaml").write_text(
        "{name: mine, engine: {}, answer_bounds: {item: 1, digit: 2, depth: 3}}", encoding="utf-8"
    )
    done = run(*command, "--profile", "mine.yaml", K3GW_ENGINE__KIND="vllm")
    assert 2 == done.returncode
    assert "`answer_bounds.item`, `answer_bounds.digit`: unknown; known are: " in said(done)
    assert not {"vllm", "torch"} & imported(done)


def test_check_config_says_what_it_does_not_check(run: Run) -> None:
    done = run("check-config", "--profile", "cpu-demo", K3GW_ENGINE__OVERRIDES='{"max_model_length": 5}')
    assert (0, True) == (done.returncode, "profile.engine.max_model_length = 5  (engine.overrides)" in done.stdout)
    assert "are not checked: vLLM does so when it starts" in done.stdout
    assert not {"vllm", "torch"} & imported(done)


def test_check_config_keeps_secrets_of_ones_own_profile(run: Run, tmp_path: Path) -> None:
    engine, environment = "{hf_token: hf_abc, model_loader_extra_config: {secret_key: hf_abc}}", "{HF_TOKEN: hf_abc}"
    (tmp_path / "mine.yaml").write_text(f"{{name: mine, engine: {engine}, environment: {environment}}}", encoding="utf-8")
    done = run("check-config", "--profile", "mine.yaml", K3GW_ENGINE__OVERRIDES='{"kv_transfer_config": {"token": "hf_abc"}}')
    assert "profile.environment.HF_TOKEN = '***'  (mine)" in done.stdout.splitlines()
    assert "hf_abc" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        (["--rank", "1", "--profile", "kimi-k3-b200-2node"], {}, "set `engine.overrides: {master_addr: ADDRESS}`"),
        (["--rank", "2", "--profile", "kimi-k3-b200-2node", "--head", "10.0.0.1"], {}, "there is no node 2"),
        (["--rank", "0", "--profile", "kimi-k3-b200-2node", "--head", "10.0.0.1"], {}, "--rank: `0`: must be 1 or more"),
        (["--rank", "1", "--profile", "kimi-k3-b300", "--head", "10.0.0.1"], {}, "there is no node 1"),
        (["--rank", "1", "--profile", "kimi-k3-b200-2node", "--head", "10.0.0.1"], {}, "needs 8 NVIDIA GPUs with 175 GiB"),
        (
            ["--rank", "1", "--profile", "kimi-k3-b200-2node", "--head", "10.0.0.1"],
            {"K3GW_ENGINE__CHECK_HARDWARE": "false"},
            "give the checkpoint's with `--model DIR`",
        ),
        (["--rank", "1", "--profile", "kimi-k4"], {}, "there is no engine profile `kimi-k4`"),
    ],
)
def test_another_machine_is_told_what_is_wrong_with_its_part(
    run: Run, arguments: list[str], variables: dict[str, str], words: str
) -> None:
    done = run("engine-node", *arguments, **variables)
    assert 2 == done.returncode
    assert said(done).startswith("error: ")
    assert words in said(done)
    assert not {"vllm", "torch"} & imported(done)


def test_another_machine_has_the_arguments_of_the_first() -> None:
    profile = load_profile("kimi-k3-h200-2node", {"master_addr": "10.0.0.1", "seed": 5}).on_node(1, None)
    arguments = vars(headless_arguments(profile, Path("/models/k3"), list(profile.engine)))
    assert profile.engine.items() <= arguments.items()
    assert ("/models/k3", 1, "10.0.0.1", 5) == tuple(arguments[name] for name in ("model", "node_rank", "master_addr", "seed"))
    assert (0, True) == (arguments["api_server_count"], arguments["headless"])


def test_figures_of_speculation_go_with_speculation() -> None:
    profile = load_profile("kimi-k3-gb300-dspark", {"speculative_config": None})
    assert "per_request_spec_decode_metrics" not in headless_arguments(profile, Path("/models/k3"), list(profile.engine))


def test_arguments_that_vllm_does_not_know_are_named() -> None:
    known = list(load_profile("kimi-k3-b200-2node").engine)
    profile = load_profile("kimi-k3-b200-2node", {"max_model_length": 5, "max_seqs": 5})
    with pytest.raises(ProfileError, match="arguments that vLLM does not know: `max_model_length`, `max_seqs`"):
        headless_arguments(profile, Path("/models/k3"), known)


def test_ray_starts_its_own_processes() -> None:
    profile = load_profile("kimi-k3-b200-2node", {"distributed_executor_backend": "ray"})
    with pytest.raises(ProfileError, match="runs by Ray; run `ray start --address=HEAD:6379`"):
        headless_arguments(profile, Path("/models/k3"), list(profile.engine))
