"""An engine over two machines, which here are two processes: `serve` and `engine-node`, with a model of two layers and no sense."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.services import gateway as gateway_module
from tests.services.gateway import ROOT, GatewayProcess

pytestmark = [pytest.mark.vllm, pytest.mark.long]

START_S = 400.0
END_S = 60.0
# What can be halved, which the demo model can't; weights by chance.
TINY = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 2}
Pair = tuple[GatewayProcess, subprocess.Popen[bytes]]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def pair(demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`with pair(tensor_parallel_size=2) as (gateway, node)`: both started, the gateway ready; what is left of them ends with it."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    monkeypatch.setattr(gateway_module, "START_S", START_S)

    @contextmanager
    def pair(**layout: int) -> Iterator[Pair]:
        engine = {"load_format": "dummy", "hf_overrides": TINY, "nnodes": 2, "master_addr": "127.0.0.1", **layout}
        ports = {"master_port": free_port(), "data_parallel_rpc_port": free_port()}
        environment = {"VLLM_HOST_IP": "127.0.0.1"}
        profile = {"name": "two", "extends": "cpu-demo", "engine": {**engine, **ports}, "environment": environment}
        (tmp_path / "two.yaml").write_text(json.dumps(profile), encoding="utf-8")
        settings = {"kind": "vllm", "profile": str(tmp_path / "two.yaml"), "model_path": str(demo_model)}
        gateway = GatewayProcess(tmp_path, [], engine=settings, tenancy={"auth": "off"})
        command = [sys.executable, "-m", "server", "engine-node", "--rank", "1", "--config", str(gateway.config)]
        variables = {name: value for name, value in os.environ.items() if not name.startswith("K3GW_")}
        with (tmp_path / "node.log").open("wb") as log:
            node = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=log, stderr=log)
        below: list[psutil.Process] = []
        try:
            gateway.start()
            assert gateway._process is not None
            below = [of for pid in (node.pid, gateway._process.pid) for of in psutil.Process(pid).children(recursive=True)]
            yield gateway, node
        finally:
            for (
                process
            ) in below:  # they are looked up before: vLLM's coordinator of data parallelism outlives a gateway that is killed
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            gateway.kill()
            node.kill()
            node.wait()

    return pair


def answered(gateway: GatewayProcess) -> int:
    """How many tokens came back."""
    request = {"model": "kimi-k3", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "ignore_eos": True}
    answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=request, timeout=60)
    assert 200 == answer.status_code, answer.text
    return int(answer.json()["usage"]["completion_tokens"])


def test_layers_are_split_and_the_second_ends_with_the_first(pair: Callable[..., Any]) -> None:
    with pair(tensor_parallel_size=2) as (gateway, node):
        assert [8, 8] == [answered(gateway), answered(gateway)]
        assert node.poll() is None
        gateway.kill()
        assert 1 == node.wait(END_S)


def test_requests_are_split_and_the_second_ends_when_told(pair: Callable[..., Any]) -> None:
    with pair(data_parallel_size=2) as (gateway, node):
        assert [8] * 4 == [answered(gateway) for _ in range(4)]
        assert 0 == gateway.end()
        node.send_signal(signal.SIGTERM)
        assert 0 == node.wait(END_S)
