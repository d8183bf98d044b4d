"""The unit that ships: what it starts exists, it stops a gateway as that wants to be stopped, and systemd knows what it says."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from server.cli import app
from server.lifespan import LAST_WORDS_S
from server.sections import HttpSettings
from server.workers.supervisor import CORE_STOP_S, STOP_S

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy" / "systemd" / "k3-gateway.service"
OPERATIONS = ROOT / "docs" / "operations.md"
CLOSING_S = LAST_WORDS_S + STOP_S + 2 * CORE_STOP_S
"""The most that a gateway takes once `http.drain_timeout_s` is over: last words, workers that hang, the engine's processes, their
coordinator."""

NEW_IN_254 = ("RestartSteps", "RestartMaxDelaySec")


class Service(dict[str, str]):
    """The last value of each of the service's settings."""

    def __init__(self) -> None:
        _, _, section = UNIT.read_text(encoding="utf-8").partition("[Service]\n")
        section, _, _ = section.partition("\n[")
        lines = [line for line in section.splitlines() if line and not line.startswith("#")]
        self._pairs = [(name, value) for name, _, value in (line.partition("=") for line in lines)]
        super().__init__(self._pairs)

    def all(self, name: str) -> list[str]:
        """The values of one that may be there several times."""
        return [value for found, value in self._pairs if found == name]


@pytest.fixture
def service() -> Service:
    return Service()


def test_it_starts_what_there_is(service: Service) -> None:
    program, command, *arguments = service["ExecStart"].split()
    assert ("k3-gateway", "serve") == (Path(program).name, command)
    told = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    assert all(argument in told for argument in arguments if argument.startswith("--"))


def test_a_drain_reaches_the_gateway_alone_and_has_its_time(service: Service) -> None:
    assert "mixed" == service["KillMode"]
    assert int(service["TimeoutStopSec"]) >= HttpSettings().drain_timeout_s + CLOSING_S


def test_the_operator_is_told_how_long_closing_takes() -> None:
    (told_s,) = re.findall(
        r"more time than `http.drain_timeout_s` before it is killed: (\d+) s more", OPERATIONS.read_text("utf-8")
    )
    assert int(told_s) >= CLOSING_S


def test_what_the_engine_writes_can_be_written_and_outlasts_a_start(service: Service) -> None:
    assert "strict" == service["ProtectSystem"]
    variables = dict(variable.split("=", 1) for line in service.all("Environment") for variable in line.split())
    assert {"HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"} <= set(variables)
    writable = f"/var/cache/{service['CacheDirectory']}"
    assert [] == [name for name, path in variables.items() if path != writable and not path.startswith(f"{writable}/")]


def test_a_death_is_started_again_ever_later_and_a_mistake_is_not(service: Service) -> None:
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
