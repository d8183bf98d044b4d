"""vLLM's Rust frontend, where it can be had: the binary `vllm-rs` of the GPU wheel, over a fake core in a process of its own.

The CPU build has no such binary, so pip fetches the wheel (340 MB) once, and the binary and vLLM's Python code, which has the
protocol's encoders, are kept in the cache folder. Source: vllm/v1/utils.py, how the supervisor starts a frontend (0.33).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Final

from bench.processes import NotStartedError, python
from bench.served import MAX_MODEL_LEN, MAX_STREAMS, MODEL, TEMPLATE

VERSION: Final = "0.33.0"
BINARY: Final = "vllm/vllm-rs"


def environment_of(folder: Path) -> dict[str, str]:
    """In which the fake core imports that version's Python code."""
    return {"PYTHONPATH": str(folder), "VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "ERROR"}


def fetch(cache: Path) -> Path:
    """The folder with binary and code. Raises `NotStartedError` where it can't be had."""
    folder = cache / f"vllm-{VERSION}"
    if (folder / BINARY).is_file():
        return folder
    if platform.system() != "Linux":
        raise NotStartedError("the wheel with the binary is for Linux")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as downloads, tempfile.TemporaryDirectory(dir=cache) as unpacked:
        command = [sys.executable, "-m", "pip", "download", f"vllm=={VERSION}", "--no-deps", "--only-binary", ":all:", "-qd"]
        done = subprocess.run([*command, downloads], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        wheels = list(Path(downloads).glob("*.whl"))
        if not wheels:
            raise NotStartedError(f"pip can't download vllm {VERSION}: {(done.stderr.strip().splitlines() or ['?'])[-1][:200]}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            names = [name for name in wheel.namelist() if name == BINARY or (name.startswith("vllm/") and name.endswith(".py"))]
            wheel.extractall(unpacked, names)
        binary = Path(unpacked) / BINARY
        if not binary.is_file():
            raise NotStartedError(f"the wheel of vllm {VERSION} for this machine has no `{BINARY}`")
        binary.chmod(0o755)
        Path(unpacked).rename(folder)
        Path(unpacked).mkdir()
    return folder


def command(folder: Path, model: Path, port: int, in_path: Path, out_path: Path) -> list[str]:
    """What starts the frontend; it says nothing when it is ready."""
    return python("bench.rust_frontend", folder / BINARY, model, port, in_path, out_path)


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen()
    return listener


def main() -> None:
    """Bind the sockets as vLLM's supervisor does, and become the frontend."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("binary", "model", "port", "in_path", "out_path"):
        parser.add_argument(name, type=int if name == "port" else str)
    options = parser.parse_args()
    listeners = [
        socket.create_server(("127.0.0.1", options.port), backlog=MAX_STREAMS),
        _listen(options.in_path),
        _listen(options.out_path),
    ]
    for listener in listeners:
        listener.set_inheritable(True)
    arguments: dict[str, Any] = {
        "model_tag": options.model, "served_model_name": [MODEL], "max_model_len": MAX_MODEL_LEN, "enforce_eager": True,
        "engine_ready_timeout_secs": 600, "http_timeout_keep_alive": 75, "chat_template": TEMPLATE,
    }  # fmt: skip
    numbers = dict(zip(("--listen-fd", "--input-listener-fd", "--output-listener-fd"), listeners, strict=True))
    line = [options.binary, "frontend", *[part for name, of in numbers.items() for part in (name, str(of.fileno()))]]
    line += [
        "--engine-start-index",
        "0",
        "--engine-count",
        "1",
        "--data-parallel-size",
        "1",
        "--args-json",
        json.dumps(arguments),
    ]
    print("ready", flush=True)
    os.execv(options.binary, line)


if __name__ == "__main__":
    main()
