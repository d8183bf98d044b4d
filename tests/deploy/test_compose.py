"""The stack for one machine: Compose takes it with each engine, all that it names exists, and its secrets are in `.env` alone."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from server.engine.profiles import ProfileError, load_profile
from server.settings import Settings, SettingsError
from tests.deploy import image
from tests.deploy.expressions import ROOT
from tests.services.prometheus import needs

FOLDER = ROOT / "deploy" / "compose"
ENGINES = ("scripted", "nvidia", "amd")
SECRETS = ("API_KEY", "ADMIN_KEY", "METRICS_KEY", "CACHE_SECRET", "POSTGRES_PASSWORD", "REDIS_PASSWORD", "GRAFANA_PASSWORD")
_VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)(?:(:[-?])([^}]*))?\}")


def text() -> str:
    return (FOLDER / "compose.yaml").read_text(encoding="utf-8")


def example() -> dict[str, str]:
    """`.env.example` as Compose reads it."""
    lines = (FOLDER / ".env.example").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def filled() -> dict[str, str]:
    """A `.env` made of it, with secrets."""
    return {**example(), **{name: f"secret-{number:024d}" for number, name in enumerate(SECRETS)}}


def interpolated(source: str, variables: dict[str, str]) -> str:
    """As Compose does it: `${NAME}`, `${NAME:-default}`, `${NAME:?error}`; `$$` is a dollar."""

    def value(found: re.Match[str]) -> str:
        name, operator, rest = found.groups()
        if variables.get(name):
            return variables[name]
        if operator == ":-":
            return rest
        raise ValueError(f"{name}: {rest or 'is not set, and has no default'}")

    return _VARIABLE.sub(value, source).replace("$$", "$")


def stack(variables: dict[str, str] | None = None, source: str | None = None) -> dict[str, Any]:
    """The file, or another text, with a `.env`; anchors and merges resolved."""
    content = yaml.safe_load(interpolated(source or text(), filled() if variables is None else variables))
    return {name: value for name, value in content.items() if not name.startswith("x-")}


def services() -> dict[str, Any]:
    return dict(stack()["services"])


def active(engine: str) -> dict[str, Any]:
    """The services that run with that engine."""
    return {name: one for name, one in services().items() if engine in one.get("profiles", [engine])}


def mistakes(content: dict[str, Any], folder: Path) -> list[str]:
    """Every name in a stack that leads nowhere."""
    found, there = [], content["services"]
    for name, one in there.items():
        found += [f"{name}: depends on `{other}`" for other in one.get("depends_on", {}) if other not in there]
        found += [
            f"{name}: waits for the health of `{other}`"
            for other in one.get("depends_on", {})
            if "healthcheck" not in there.get(other, {})
        ]
        found += [f"{name}: there is no network `{other}`" for other in one["networks"] if other not in content["networks"]]
        for volume in one.get("volumes", []):
            if volume["type"] == "volume" and volume["source"] not in content["volumes"]:
                found.append(f"{name}: there is no volume `{volume['source']}`")
            if volume["type"] == "bind" and volume["source"].startswith(".") and not (FOLDER / volume["source"]).exists():
                found.append(f"{name}: there is no `{volume['source']}`")
        if "build" in one:
            found += [f"{name}: {fault}" for fault in _gateway_mistakes(one, folder)]
    return found


def _gateway_mistakes(one: dict[str, Any], folder: Path) -> list[str]:
    stage = image.stages().get(one["build"]["target"])
    if stage is None:
        return [f"there is no target `{one['build']['target']}`"]
    found = []
    targets = {volume["target"]: volume for volume in one["volumes"]}
    try:
        settings = settings_of(one, folder)
    except (SettingsError, ProfileError) as error:
        return [str(error)]
    if one["ports"][0].rpartition(":")[2] != str(settings.http.port) or str(settings.http.port) != stage.last("EXPOSE"):
        found.append(f"publishes {one['ports'][0]}, and the gateway listens on {settings.http.port}")
    if missing := stage.volumes - {path for path, volume in targets.items() if not volume.get("read_only")}:
        found.append(f"{sorted(missing)} must be volumes: the image writes there")
    if not any(settings.storage.spool_path.is_relative_to(path) for path in targets):
        found.append("the spool is on no volume")
    model = settings.engine.model_path
    if settings.engine.kind == "vllm" and (model is None or not any(model.is_relative_to(path) for path in targets)):
        found.append(f"there is no model at `{model}`")
    if one["build"].get("args", {}).get("VENDOR", "cuda") not in {name.removeprefix("base-") for name in image.stages()}:
        found.append("the vendor has no base")
    return found


def settings_of(one: dict[str, Any], folder: Path) -> Settings:
    """What a gateway of the stack is set to: the file that it is given, and its environment."""
    (source,) = [volume["source"] for volume in one["volumes"] if volume["target"] == "/etc/k3-gateway"]
    path = image.stages()[one["build"]["target"]].words("CMD")[1]
    config = (FOLDER / source / Path(path).name).read_text(encoding="utf-8")
    return image.settings_of(folder, config, one["environment"])


@pytest.fixture(params=ENGINES)
def gateway(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(services()[request.param])


def test_compose_takes_it() -> None:
    parsed = PyCompose.from_yaml(yaml.safe_dump(stack()))
    assert set(services()) == set(parsed.service_names())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("read_only: true\n    security_opt", "readonly: true\n    security_opt"), ("condition: service_healthy", "condition: healthy"),
        ("stop_grace_period: 150s", "stop_grace_period: later"), ("internal: true", "intern: true"), ("capabilities: [gpu]", "capability: [gpu]"),
        ("interval: 5s", "every: 5s"), ("restart: unless-stopped", "restart: sometimes"), ("profiles: [amd]", "profiles: amd"),
    ],
)  # fmt: skip
def test_a_field_that_is_not_known_is_refused(old: str, new: str) -> None:
    assert old in text()
    with pytest.raises(ValueError, match=r"\w"):
        PyCompose.from_yaml(yaml.safe_dump(stack(source=text().replace(old, new))))


if shutil.which("docker") and not subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:

    def test_docker_takes_it(tmp_path: Path) -> None:
        (tmp_path / ".env").write_text("".join(f"{name}={value}\n" for name, value in filled().items()))
        command = [
            "docker",
            "compose",
            "--file",
            str(FOLDER / "compose.yaml"),
            "--env-file",
            str(tmp_path / ".env"),
            "config",
            "--quiet",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (0, "") == (done.returncode, done.stdout + done.stderr)


def test_all_that_is_named_exists(tmp_path: Path) -> None:
    assert [] == mistakes(stack(), tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("postgres: {condition", "postgresql: {condition", "depends on `postgresql`"), ("source: state", "source: stat", "no volume `stat`"),
        ("networks: [back]", "networks: [backend]", "no network `backend`"), ("../grafana/dashboards,", "../grafana/pages,", "no `../grafana/pages`"),
        ("../prometheus/rules", "../prometheus/rule", "no `../prometheus/rule`"), ("./prometheus.yml", "./prometheus.yaml", "no `./prometheus.yaml`"),
        ("target: scripted", "target: script", "no target `script`"), ("K3GW_METRICS__KEY", "K3GW_METRIC__KEY", "no section `metric`"),
        ("K3GW_TENANCY__CACHE_SECRET", "K3GW_TENANCY__CACHE_SALT", "no such setting"), ("target: /var/cache/k3-gateway", "target: /cache", "must be volumes"),
        ("target: /models", "target: /model", "no model at `/models/kimi-k3`"), ("VENDOR: rocm", "VENDOR: amd", "the vendor has no base"),
        (":8000\"]", ":8080\"]", "publishes"), ("target: /var/lib/k3-gateway", "target: /var/lib/gateway", "the spool is on no volume"),
    ],
)  # fmt: skip
def test_a_name_that_leads_nowhere_is_found(old: str, new: str, found: str, tmp_path: Path) -> None:
    assert old in text()
    planted = mistakes(stack(source=text().replace(old, new)), tmp_path)
    assert [one for one in planted if found in one], planted


def test_an_engine_is_chosen_by_one_line(tmp_path: Path) -> None:
    everywhere = {"postgres", "redis", "prometheus", "grafana"}
    assert [{engine, *everywhere} for engine in ENGINES] == [set(active(engine)) for engine in ENGINES]
    assert example()["COMPOSE_PROFILES"] == "scripted", "what runs anywhere comes first"
    kinds = [settings_of(services()[engine], tmp_path).engine.kind for engine in ENGINES]
    assert ["scripted", "vllm", "vllm"] == kinds
    assert load_profile(example()["ENGINE_PROFILE"]).name == settings_of(services()["nvidia"], tmp_path).engine.profile


def test_every_variable_is_in_the_example_and_every_secret_must_be_filled_in() -> None:
    used = {name for name, _, _ in _VARIABLE.findall(text())}
    assert {*used, "COMPOSE_PROFILES"} == set(example())
    assert dict.fromkeys(SECRETS, "") == {name: example()[name] for name in SECRETS}
    for name in SECRETS:
        with pytest.raises(ValueError, match=f"{name}: set it in .env"):
            stack({**filled(), name: ""})
    defaults = {name: rest for name, operator, rest in _VARIABLE.findall(text()) if operator == ":-"}
    assert defaults == {name: example()[name] for name in defaults}


def test_no_secret_is_in_a_file() -> None:
    assert not re.findall(r"(?i)(?:password|secret|_key): +(?!\$\{)\S+", text())
    assert ".env" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert not (ROOT / ".dockerignore").read_text(encoding="utf-8").count("compose")


def test_a_stopped_gateway_has_the_time_that_it_says_it_needs(gateway: dict[str, Any], tmp_path: Path) -> None:
    settings = settings_of(gateway, tmp_path)
    assert int(gateway["stop_grace_period"].removesuffix("s")) >= settings.http.drain_timeout_s + 30


def test_whatever_ends_is_started_again_and_nothing_before_what_it_needs(gateway: dict[str, Any]) -> None:
    assert {"unless-stopped"} == {one["restart"] for one in services().values()}
    assert {"postgres": {"condition": "service_healthy"}, "redis": {"condition": "service_healthy"}} == gateway["depends_on"]


def test_only_the_gateway_and_grafana_can_be_reached_and_only_from_here() -> None:
    published = {name: one["ports"] for name, one in services().items() if "ports" in one}
    assert {*ENGINES, "grafana"} == set(published)
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    assert {"internal": True} == stack()["networks"]["back"]
    assert set(published) == {name for name, one in services().items() if "front" in one["networks"]}


def test_file_systems_are_read_only_and_rights_given_up(gateway: dict[str, Any]) -> None:
    assert all(one["read_only"] for one in services().values())
    assert all("no-new-privileges:true" in one["security_opt"] for one in services().values())
    assert ["ALL"] == gateway["cap_drop"]
    assert "user" not in gateway, "the image's own"
    assert any(entry.partition(":")[0] == "/tmp" for entry in gateway["tmpfs"])


def test_a_gpu_is_given_as_its_vendor_wants_it() -> None:
    by_name = services()
    (device,) = by_name["nvidia"]["deploy"]["resources"]["reservations"]["devices"]
    assert {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]} == device
    assert ["/dev/kfd:/dev/kfd", "/dev/dri:/dev/dri"] == by_name["amd"]["devices"]
    assert [example()["VIDEO_GID"], example()["RENDER_GID"]] == by_name["amd"]["group_add"]
    assert all(by_name[name]["shm_size"] == "32gb" for name in ("nvidia", "amd"))


def test_prometheus_scrapes_the_gateway_with_its_key_and_has_the_rules(tmp_path: Path, gateway: dict[str, Any]) -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text(encoding="utf-8"))
    (job,) = config["scrape_configs"]
    host, _, port = job["static_configs"][0]["targets"][0].partition(":")
    assert host in gateway["networks"]["back"]["aliases"]
    assert port == image.stages()["scripted"].last("EXPOSE")
    shipped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    assert (shipped["rule_files"], shipped["global"], "k3-gateway") == (config["rule_files"], config["global"], job["job_name"])
    one = services()["prometheus"]
    key_file = job["authorization"]["credentials_file"]
    assert f"> {key_file};" in one["entrypoint"][2]
    assert any(entry.startswith(str(Path(key_file).parent)) for entry in one["tmpfs"])
    mounted = {volume["target"]: volume["source"] for volume in one["volumes"]}
    assert f"--config.file={next(path for path in mounted if path.endswith('prometheus.yml'))}" in one["command"]
    (tmp_path / "key").write_text("key")
    (tmp_path / "rules").symlink_to(FOLDER / mounted["/etc/prometheus/rules"])
    (tmp_path / "prometheus.yml").write_text(
        (FOLDER / "prometheus.yml").read_text(encoding="utf-8").replace(key_file, str(tmp_path / "key"))
    )
    done = subprocess.run(
        [needs("promtool"), "check", "config", str(tmp_path / "prometheus.yml")], capture_output=True, text=True, timeout=60
    )
    assert 0 == done.returncode, done.stdout + done.stderr


def test_the_key_is_written_where_only_prometheus_reads_it(tmp_path: Path) -> None:
    """The shell of the entry point, with another program in Prometheus's place."""
    shell, flags, script, *rest = services()["prometheus"]["entrypoint"]
    script = script.replace("/tmp/", f"{tmp_path}/").replace("/bin/prometheus", "echo")
    done = subprocess.run(
        [shell, flags, script, *rest, "--one", "--two words"], env={"METRICS_KEY": "a $key"}, capture_output=True, text=True
    )
    assert (0, "--one --two words\n") == (done.returncode, done.stdout)
    assert ("a $key", 0o600) == ((tmp_path / "metrics-key").read_text(), (tmp_path / "metrics-key").stat().st_mode & 0o777)


def test_grafana_finds_prometheus_and_the_dashboards() -> None:
    one = services()["grafana"]
    mounted = {volume["target"]: volume["source"] for volume in one["volumes"]}
    (source,) = yaml.safe_load((FOLDER / "grafana-datasource.yaml").read_text(encoding="utf-8"))["datasources"]
    assert "http://prometheus:9090" == source["url"]
    folder = FOLDER / mounted["/etc/grafana/provisioning/dashboards"]
    (provider,) = yaml.safe_load((folder / "k3-gateway.yaml").read_text(encoding="utf-8"))["providers"]
    assert list((FOLDER / mounted[provider["options"]["path"]]).glob("*.json"))
    assert set(one["networks"]) & set(services()["prometheus"]["networks"])
