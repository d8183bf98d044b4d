"""The images as far as can be told without building them: linted, and what they promise to whoever runs them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from server.routes import health
from server.settings import Settings
from tests.deploy import image
from tests.deploy.expressions import ROOT
from tests.deploy.image import Stage, stages

FINAL = ("scripted", "vllm")
SECRET = re.compile(r"(?i)(password|secret|token|api_?key|credential)")


@pytest.fixture(params=FINAL, ids=lambda name: f"target-{name}")
def stage(request: pytest.FixtureRequest) -> Stage:
    return stages()[request.param]


def linted(*command: str) -> str:
    """What a linter has to say, which is nothing; it is installed beside the suite's Python."""
    program = Path(sys.executable).with_name(command[0])
    done = subprocess.run([str(program), *command[1:]], cwd=ROOT, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def test_the_dockerfile_is_linted() -> None:
    assert "" == linted("hadolint", "--no-color", "Dockerfile")


def test_the_linter_is_not_asleep(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM debian:latest\nRUN cd /tmp && apt-get install curl\nENTRYPOINT k3-gateway serve\n")
    said = linted("hadolint", "--no-color", str(tmp_path / "Dockerfile"))
    assert {"DL3007", "DL3008", "DL3025"} <= set(re.findall(r"DL\d+", said))


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "deploy" / "container").glob("*.sh")))
def test_scripts_of_the_images_are_linted_and_can_be_run(name: str) -> None:
    path = ROOT / "deploy" / "container" / name
    assert "" == linted("shellcheck", "--norc", str(path))
    assert path.stat().st_mode & 0o111


def test_what_is_built_without_a_target_is_the_gateway_with_vllm() -> None:
    assert "vllm" == list(stages())[-1]


def test_the_base_is_of_the_vendor_that_is_asked_for_or_what_is_named() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert {"VENDOR=cuda", "BASE_IMAGE="} < set(re.findall(r"^ARG (.*)$", text, re.MULTILINE))
    found = stages()
    assert "vllm-base" == found["vllm"].base
    assert "${BASE_IMAGE:-base-${VENDOR}}" == found["vllm-base"].base
    assert ["vllm/vllm-openai:v${VLLM_VERSION}", "vllm/vllm-openai-rocm:v${VLLM_VERSION}"] == [
        found[f"base-{vendor}"].base for vendor in ("cuda", "rocm")
    ]


def test_vllm_is_a_release_that_the_package_takes() -> None:
    (version,) = re.findall(r"^ARG VLLM_VERSION=(.*)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    (wanted,) = re.findall(r'^gpu = \["vllm(.*)"\]', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert version in SpecifierSet(wanted)


def test_nobody_in_the_image_is_root(stage: Stage) -> None:
    user, _, group = stage.last("USER").partition(":")
    assert ("10001", "0") == (user, group)
    assert any(f"useradd --uid {user} --gid {group} " in line for line in stage.all("RUN"))


def test_it_is_stopped_as_the_gateway_drains_and_started_without_a_shell(stage: Stage) -> None:
    assert "SIGTERM" == stage.last("STOPSIGNAL")
    assert ["k3-gateway", "serve"] == stage.words("ENTRYPOINT")
    flag, path = stage.words("CMD")
    assert flag in image.serve_flags()
    assert path in stage.copied


def test_what_it_starts_from_is_a_configuration(stage: Stage, tmp_path: Path) -> None:
    source = ROOT / stage.copied["/etc/k3-gateway/config.yaml"]
    settings = image.settings_of(tmp_path, source.read_text(encoding="utf-8"), {})
    assert ("0.0.0.0", int(stage.last("EXPOSE"))) == (settings.http.host, settings.http.port)
    kept = [str(settings.storage.spool_path), settings.storage.ledger_url.removeprefix("sqlite:///")]
    assert all(path.startswith("/var/lib/k3-gateway/") for path in kept)
    if settings.engine.model_path is not None:
        assert settings.engine.model_path.is_relative_to("/models")


def test_all_that_is_written_is_on_volumes_of_the_user(stage: Stage) -> None:
    """`HOME` and every cache; /tmp is given by who runs it, as a tmpfs."""
    written = [value for name, value in stage.environment.items() if name == "HOME" or name.endswith("_DIR")]
    assert stage.environment["HOME"] == "/var/cache/k3-gateway"
    assert all(any(f"{path}/".startswith(f"{volume}/") for volume in stage.volumes) for path in written)
    (made,) = [line for line in stage.all("RUN") if "install -d -o" in line]
    assert stage.volumes == set(re.search(r"install -d -o 10001 -g 0 -m 0770 ([^;]*);", made)[1].split())  # type: ignore[index]


def test_its_health_is_that_of_the_process_asked_without_a_tool_that_an_image_may_lack(stage: Stage) -> None:
    command = shlex.split(stage.last("HEALTHCHECK").partition("CMD ")[2].replace(",", " "))
    assert f"{image.BIN}/python" in command[0]
    text = stage.last("HEALTHCHECK")
    paths = [getattr(route, "path", "") for route in health.router.routes]
    assert re.search(r"'GET', '([^']*)'", text)[1] in paths  # type: ignore[index]
    assert f"'127.0.0.1', {Settings().http.port}" in text


def test_no_layer_has_a_secret_or_a_file_that_was_not_asked_for(stage: Stage) -> None:
    assert not [line for name, line in stage.instructions if name in ("ENV", "ARG") and SECRET.search(line)]
    assert not stage.all("ADD")
    assert all(source.startswith("deploy/container/") for source in stage.copied.values())
    assert all((ROOT / source).is_file() for source in stage.copied.values())
    installs = [line for line in stage.all("RUN") if "install.sh" in line]
    assert 1 == len(installs)
    assert "--mount=type=bind,target=/source,readonly" in installs[0], "the source is not to be in a layer"


def test_the_context_is_what_is_named_and_all_that_the_installation_reads() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]
    assert "*" == lines[0]
    taken = {line[1:] for line in lines if line.startswith("!")}
    assert all((ROOT / name).exists() for name in taken)
    script = (ROOT / "deploy" / "container" / "install.sh").read_text(encoding="utf-8")
    copied = re.findall(r'"\$source/([\w.]+)"', script)
    assert {"pyproject.toml", "server"} < set(copied)
    assert taken == {*copied, "deploy/container"}


def test_extras_that_are_installed_exist(stage: Stage) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (line,) = [line for line in stage.all("RUN") if "install.sh" in line]
    asked = line.partition("/source /opt/k3-gateway ")[2].split()
    assert asked
    assert set(asked) <= set(extras)


def test_both_images_differ_only_where_they_must() -> None:
    """What is said twice in the Dockerfile is said alike."""
    one, other = (stages()[name] for name in FINAL)
    same = ("USER", "WORKDIR", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD", "SHELL")
    assert [one.all(name) for name in same] == [other.all(name) for name in same]
    assert one.environment.items() <= other.environment.items()
    assert one.all("RUN")[1:] == other.all("RUN")[1:]


def test_configurations_of_the_images_say_the_same_but_for_the_engine() -> None:
    files = [yaml.safe_load((ROOT / "deploy" / "container" / f"{name}.yaml").read_text(encoding="utf-8")) for name in FINAL]
    assert [{**file, "engine": None} for file in files] == [{**files[0], "engine": None}] * 2
    assert list(FINAL) == [file["engine"]["kind"] for file in files]
