"""The measurements have one command, and say what they found on what machine."""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench import parse, stream
from bench.__main__ import COMMANDS
from bench.core_answers import answers_of
from bench.core_plan import KINDS
from bench.report import Report
from server.events import ContentDelta, Event, ReasoningDelta, ToolCallArguments, ToolCallEnd
from server.parsers.factory import ParserFactory
from server.vocabulary.byte import ByteVocabulary
from tests.wire.customers import wait_for

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_the_gateways_command_runs_them_from_anywhere(tmp_path: Path) -> None:
    done = run(
        "server", "bench", "parse", "--tokens", "64", "--vllm-seconds", "0", "--rounds", "1", "--json", "x.json", cwd=tmp_path
    )
    found = json.loads((tmp_path / "x.json").read_text())
    assert done.returncode in (0, 1), done.stderr  # 1: this machine is too busy
    assert {"cores", "cpu", "load", "python", "vllm", "date"} <= found["machine"].keys()
    assert len(parse.KINDS) * len(parse.FEEDS) == len(found["tokens"])
    assert "ours µs" in done.stdout


def test_all_that_can_be_run_is_listed() -> None:
    texts = {path.stem: path.read_text() for path in (ROOT / "bench").glob("*.py")}
    started = {name for name in texts if any(f'"bench.{name}"' in text for text in texts.values())}  # by the others
    found = {name for name, text in texts.items() if f"python -m bench.{name}" in text} - started
    assert {"drain", "images", "metrics"} <= found <= COMMANDS.keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_measurement_that_is_told_to_end_tidies_up(name: str) -> None:
    main = inspect.getsource(importlib.import_module(f"bench.{name}").main)
    assert re.search(r"^    end_on_sigterm\(\)$", main, re.MULTILINE)


def test_a_measurement_that_is_told_to_end_leaves_no_server_and_no_folder(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "bench", "drain", "--starts", "1"],
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    ) as measurement:
        children: list[psutil.Process] = []
        wait_for(lambda: children.extend(psutil.Process(measurement.pid).children(recursive=True)) or bool(children))
        measurement.terminate()
        code = measurement.wait(30)
        assert measurement.stderr is not None
        errors = measurement.stderr.read()
    _, alive = psutil.wait_procs(children, timeout=30)

    assert (130, [], []) == (code, alive, list(tmp_path.iterdir()))
    assert "Traceback" not in errors


@pytest.mark.parametrize(("arguments", "code"), [([], 0), (["--help"], 0), (["nonsense"], 2)])
def test_what_there_is_is_listed(arguments: list[str], code: int) -> None:
    done = run("bench", *arguments)
    assert code == done.returncode
    assert all(command in done.stderr for command in COMMANDS)


class ParsedError(Exception):
    """The options were taken."""


NEEDED = {
    "grammar": ["--vocab", "FILE"],
    "tool_schemas": ["--url", "http://x", "--key", "x"],
    "workers": ["--redis", "redis://x"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_starts_without_options_but_those_that_it_needs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A default that an option's own check refuses would end it before anything starts."""
    (tmp_path / ".cache" / "demo-model").mkdir(parents=True)
    (tmp_path / ".cache" / "demo-model" / "config.json").touch()
    parse_args = argparse.ArgumentParser.parse_args

    def parsed(*arguments: Any) -> None:
        parse_args(*arguments)
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parsed)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr("bench.line_up.ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", [f"bench {name}", *NEEDED.get(name, [])])
    with pytest.raises(ParsedError):
        importlib.import_module(f"bench.{name}").main()


@pytest.mark.parametrize(
    "line",
    [
        "parse --rounds 0", "parse --tokens abc", "parse --tokens -5", "parse --vocab /nowhere", "parse --json /nowhere/x.json",
        "parse --json /", "prompt --vocab /nowhere", "prompt --vocab / --rounds 0", "prompt --vocab / --phases nonsense",
        "prompt --vocab / --streams -1", "stream --kinds nonsense", "stream --only nonsense", "stream --waves 0",
        "stream --streams 0", "stream --paced 40", "stream --paced x:1", "stream --tokens-per-step 0", "stream --model /",
        "idle --only nonsense", "idle --streams 0", "connect --concurrent 0", "connect --rounds 0", "connect --only nonsense",
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, *arguments = line.split()
    main = importlib.import_module(f"bench.{name}").main
    monkeypatch.setattr(sys, "argv", [f"bench {name}", *arguments])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as refused:
        main()
    said = capsys.readouterr()
    assert (2, "") == (refused.value.code, said.out)
    assert f"error: argument {next(part for part in reversed(arguments) if part.startswith('--'))}" in said.err.splitlines()[-1]


def test_a_table_keeps_what_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("any", {"rounds": 3})
    report.table("one", "A title", {"who": "", "cost": ".2f"}, [{"who": "gateway", "cost": 0.125}, {"who": "rust", "cost": None}])
    report.note("not measured: rust")
    report.write(tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert [{"who": "gateway", "cost": 0.125}, {"who": "rust", "cost": None}] == found["one"]
    assert ["not measured: rust"] == found["notes"]
    lines = capsys.readouterr().out.splitlines()
    assert ["A title", "who      cost", "gateway  0.12", "rust        -"] == [line for line in lines if line][:4]


@pytest.mark.parametrize("kind", KINDS)
def test_the_cores_say_what_is_read_as_their_kind(kind: str) -> None:
    vocabulary = ByteVocabulary()
    answer = answers_of(vocabulary)[KINDS.index(kind)]
    token_ids = answer.token_ids(400)
    parser = ParserFactory("kimi_k3", vocabulary).make(thinking=kind == "reasoning")
    events: list[Event] = [*parser.feed(token_ids), *parser.finish("stop" if answer.ends else "length")]
    of_kind = {"text": ContentDelta, "reasoning": ReasoningDelta, "tools": ToolCallArguments}[kind]
    assert 400 == len(token_ids)
    assert {of_kind} == {type(event) for event in events} & {ContentDelta, ReasoningDelta, ToolCallArguments}
    assert (kind == "tools") == any(isinstance(event, ToolCallEnd) for event in events)


def row(name: str, cost: float, ttft_ms: float) -> dict[str, Any]:
    keys = ("tokens_per_s", "cpu_share", "ttft_p99_ms", "chunks_per_token")
    return {"cpu_s_per_1000_tokens": cost, "ttft_p50_ms": ttft_ms, **dict.fromkeys(keys, 1.0)}


def test_medians_are_compared_with_medians() -> None:
    costs = {"gateway": [0.03, 0.9, 0.02], "vllm": [0.06, 0.06, 0.01], "asgi": [0.02, 0.02, 0.02]}
    rows = stream._rows({name: [row(name, cost, 10.0) for cost in of] for name, of in costs.items()})
    ratios = stream._ratios(stream.Setting("text", 1, 40.0, 8), rows)
    assert [0.03, 0.06, 0.02] == [line["s/1000 tokens"] for line in rows]
    assert 0.5 == ratios["to vllm"]
    assert 1.5 == ratios["to asgi"]
    assert ratios["zmq to rust"] is None
    assert "text, 8 streams, 40 steps/s, 1 tokens a step" == ratios["setting"]


def test_an_answer_that_vllm_did_not_come_to_the_end_of_is_marked() -> None:
    whole = {"kind": "content", "ours µs": 1.0, "vLLM µs": 20.0, "ratio": 20.0, "vLLM whole": True}
    assert whole == parse._marked(whole)
    assert ">= 20.0" == parse._marked({**whole, "vLLM whole": False})["vLLM µs"]


def test_feeding_stops_when_the_time_is_up() -> None:
    fed: list[int] = []

    def feed(step: Any) -> None:
        fed.append(len(step))

    _, is_whole = parse._us_per_token(feed, list(range(4096)), 1, most_s=0.0)
    assert not is_whole
    assert 256 == len(fed)
    _, is_whole = parse._us_per_token(feed, list(range(4096)), 4)
    assert is_whole
    assert 4096 == sum(fed[256:])
