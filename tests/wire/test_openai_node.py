"""openai-node, driven through `node/client.mjs`, which prints what the client saw."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Target = Any  # of conftest
HERE = Path(__file__).resolve().parent / "node"
MODULES = HERE.parents[2] / ".cache" / "node"
Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """`run(target, *case)`: the printed object. The program runs beside the installed modules, where node looks for them."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    if not (MODULES / "node_modules" / "openai").is_dir():
        pytest.skip("openai for node is not installed: `./test` puts it into .cache/node")
    folder = tmp_path_factory.mktemp("node")
    shutil.copy(HERE / "client.mjs", folder)
    (folder / "node_modules").symlink_to(MODULES / "node_modules")

    def run(target: Target, *case: str) -> dict[str, Any]:
        command = [node, "client.mjs", target.base_url, target.key, target.model, *case]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
        assert 0 == done.returncode, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    return run


def test_the_installed_modules_are_those_of_the_lock_file(run: Run) -> None:
    locked = json.loads((HERE / "package-lock.json").read_text())["packages"]["node_modules/openai"]["version"]
    assert locked == json.loads((MODULES / "node_modules" / "openai" / "package.json").read_text())["version"]


def test_every_case(run: Run, target: Target) -> None:
    seen = run(target)
    assert {"listed": [target.model], "one": target.model} == seen["models"]
    whole, stream = seen["whole"], seen["stream"]
    assert "Paris" in whole["content"]
    assert ("stop", True) == (whole["finish"], whole["hasRequestId"])
    assert (["assistant"], ["stop"], whole["content"]) == (stream["roles"], stream["finishes"], stream["content"])
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [whole["usage"][name] for name in counts] == [stream["usage"][name] for name in counts]
    assert {"content": whole["content"], "deltas": whole["content"]} == seen["helper"]
    assert seen["reasoning"]["reasoning"]
    assert "Paris" in seen["reasoning"]["content"]
    tools = seen["tools"]
    assert ("tool_calls", "get_weather") == (tools["finish"], tools["name"])
    assert {"city": "Paris"} == tools["arguments"]
    assert "21" in tools["answer"]
    assert {"next": target.model} == seen["abort"]


def test_errors_have_their_classes(run: Run, target: Target) -> None:
    expected = {
        "temperature": ("BadRequestError", 400, "invalid_value", "temperature"),
        "streamed": ("BadRequestError", 400, "invalid_value", "max_tokens"),
        "model": ("NotFoundError", 404, "model_not_found", "model"),
        "key": ("AuthenticationError", 401, "invalid_api_key", None),
    }
    assert expected == {name: tuple(error.values()) for name, error in run(target, "errors")["errors"].items()}


def test_an_error_frame_is_thrown_from_the_stream(run: Run, start_gateway: Any, scripted: Target) -> None:
    gateway = start_gateway([{"reply": [{"text": "It is"}, "error"]}])
    broken = run(type(scripted)(f"{gateway.url}/v1", scripted.key), "broken")["broken"]
    assert "It is" == broken["content"]
    assert ("APIError", None, "engine_error") == tuple(broken["error"][key] for key in ("class", "status", "code"))
