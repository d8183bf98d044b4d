"""The unit that ships: what it starts exists, it stops a gateway as that wants to be stopped, and systemd knows what it says."""

from __future__ import annotations

import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from server.cli import app
from server.sections import HttpSettings

UNIT = Path(__file__).resolve().parents[2] / "deploy" / "systemd" / "k3-gateway.service"
NEW_IN_254 = ("RestartSteps", "RestartMaxDelaySec")


@pytest.fixture
def service() -> dict[str, str]:
    parser = ConfigParser(interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    assert [str(UNIT)] == parser.read(UNIT, encoding="utf-8")
    return dict(parser["Service"])


def test_it_starts_what_there_is(service: dict[str, str]) -> None:
    program, command, *arguments = service["ExecStart"].split()
    assert ("k3-gateway", "serve") == (Path(program).name, command)
    told = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    assert all(argument in told for argument in arguments if argument.startswith("--"))


def test_a_drain_reaches_the_gateway_alone_and_has_its_time(service: dict[str, str]) -> None:
    assert "mixed" == service["KillMode"]
    assert int(service["TimeoutStopSec"]) >= HttpSettings().drain_timeout_s + 10


def test_a_death_is_started_again_ever_later_and_a_mistake_is_not(service: dict[str, str]) -> None:
    assert ("on-failure", "2") == (service["Restart"], service["RestartPreventExitStatus"])
    assert 0 < int(service["RestartSec"]) < int(service["RestartMaxDelaySec"])
    assert int(service["RestartSteps"]) > 1


def test_systemd_knows_all_of_it(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    text = UNIT.read_text(encoding="utf-8")
    assert 1 == text.count("/opt/k3-gateway/bin/k3-gateway")
    (tmp_path / UNIT.name).write_text(text.replace("/opt/k3-gateway/bin/k3-gateway", "/bin/true"), encoding="utf-8")
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / UNIT.name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = [
        line for line in done.stderr.splitlines() if UNIT.name in line and not any(f"'{name}'" in line for name in NEW_IN_254)
    ]
    assert [] == said
