"""What is measured side by side: what can't be had is said, and ends with the rest."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import litellm_proxy, rust_frontend
from bench.line_up import LineUp
from bench.options import model_folder
from bench.processes import ROOT, NotStartedError, Process


def test_a_process_that_does_not_start_says_its_last_words() -> None:
    process = Process([sys.executable, "-c", "import sys; print('starting'); sys.exit('no room for it')"])
    with pytest.raises(NotStartedError, match="no room for it"):
        process.wait_ready()
    process.stop()


def test_a_process_is_asked_and_measured() -> None:
    echo = "import sys; print('ready', flush=True); [print(line.strip()[::-1], flush=True) for line in sys.stdin]"
    process = Process([sys.executable, "-c", echo])
    try:
        process.wait_ready()
        before_s = process.cpu_s
        assert "dcba\n" == process.ask("abcd")
        assert process.cpu_s >= before_s > 0
        assert process.rss_bytes > 1024 * 1024
    finally:
        process.stop()


def test_what_cannot_be_had_is_said_and_the_rest_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(cache: Path) -> Path:
        raise NotStartedError("no index")

    monkeypatch.setattr(rust_frontend, "fetch", unreachable)
    monkeypatch.setattr(litellm_proxy, "fetch", unreachable)
    (tmp_path / "config.json").write_text("{}")
    notes: list[str] = []
    with LineUp(["rust", "litellm"], tmp_path, tmp_path) as line_up:
        line_up.start(notes.append)
        assert [] == line_up.frontends
    assert "not measured: rust: no index" == notes[0]
    assert notes[1].startswith("not measured: litellm: it stands in front of `asgi`")


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="build the demo model"):
        model_folder(str(tmp_path))


def test_a_wheel_that_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    binary = tmp_path / f"vllm-{rust_frontend.VERSION}" / rust_frontend.BINARY
    binary.parent.mkdir(parents=True)
    binary.touch()
    assert binary.parents[1] == rust_frontend.fetch(tmp_path)


@pytest.mark.long
@pytest.mark.vllm
def test_a_stream_is_measured_at_every_kind_and_pace(tmp_path: Path) -> None:
    if not (ROOT / ".cache/demo-model/config.json").is_file():
        pytest.skip("no demo model")
    command = [sys.executable, "-m", "bench", "stream", "--only", "gateway,vllm-k3,direct,gateway-zmq", "--streams", "4"]
    command += [
        "--paced",
        "40:4",
        "--kinds",
        "text,reasoning,tools",
        "--tokens-per-step",
        "1,4",
        "--tokens",
        "64",
        "--rounds",
        "1",
    ]
    subprocess.run([*command, "--json", str(tmp_path / "found.json")], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    found = json.loads((tmp_path / "found.json").read_text())
    rows = [row for key, rows in found.items() if key.startswith("setting_") for row in rows]
    assert 3 * 2 * 2 * 4 == len(rows)
    assert all(row["s/1000 tokens"] > 0 for row in rows)
