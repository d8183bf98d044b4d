"""LiteLLM's proxy, where it can be had: in an environment of its own, with one worker, a key and no database.

What it can't reach it asks for at each start (prices of models): it is told not to.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from bench.processes import NotStartedError
from bench.served import KEY, MODEL

PACKAGE: Final = "litellm[proxy]"
ENVIRONMENT: Final = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_TELEMETRY": "False"}
_VERSION: Final = "from importlib.metadata import version; print(version('litellm'))"


def fetch(cache: Path) -> Path:
    """The folder of the environment that has it. Raises `NotStartedError` where it can't be had."""
    folder = cache / "litellm-venv"
    if (folder / "bin/litellm").is_file():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    for command in ([sys.executable, "-m", "venv", str(folder)], [str(folder / "bin/pip"), "install", "-q", PACKAGE]):
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise NotStartedError(f"`{PACKAGE}` can't be installed: {(done.stderr.strip().splitlines() or ['?'])[-1][:200]}")
    return folder


def version(folder: Path) -> str:
    """Of LiteLLM in that environment."""
    done = subprocess.run([folder / "bin/python", "-c", _VERSION], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def command(folder: Path, upstream_port: int, port: int, config: Path) -> list[str]:
    """What starts the proxy in front of `upstream_port`; `config` is written."""
    upstream = {"model": f"openai/{MODEL}", "api_base": f"http://127.0.0.1:{upstream_port}/v1", "api_key": KEY}
    settings = {"model_list": [{"model_name": MODEL, "litellm_params": upstream}], "general_settings": {"master_key": KEY}}
    config.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
    program = str(folder / "bin/litellm")
    return [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
