"""The manifests: each overlay is what Kubernetes takes, all that it names exists, and its times and rights fit the gateway."""

from __future__ import annotations

import copy
import ipaddress
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from deploy.kubernetes.__main__ import TARGET, prometheus_rule
from server.engine.profiles import load_profile
from server.settings import Settings
from tests.deploy import image
from tests.deploy.custom_resources import PICKER, faults
from tests.deploy.expressions import ROOT
from tests.deploy.kustomization import Resource, build, documents, identity
from tests.deploy.pods import Pod, config_of, container, environment, flags, pods
from tests.deploy.references import mistakes
from tests.services.prometheus import needs

FOLDER = ROOT / "deploy" / "kubernetes"
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # fast, where PyYAML has it
OVERLAYS = sorted(path.name for path in (FOLDER / "overlays").iterdir())


@cache
def _built(overlay: str) -> list[Resource]:
    return build(FOLDER / "overlays" / overlay)


@cache
def _dumped(overlay: str) -> str:
    """As one text, in which mistakes can be planted."""
    return yaml.safe_dump_all(_built(overlay), width=1000)


@pytest.fixture(params=OVERLAYS)
def resources(request: pytest.FixtureRequest) -> list[Resource]:
    return copy.deepcopy(_built(request.param))


def the(resources: list[Resource], kind: str, name: str = "k3-gateway") -> Resource:
    (found,) = [resource for resource in resources if identity(resource) == (kind, name)]
    return found


def settings_of(resources: list[Resource], folder: Path) -> Settings:
    pod, gateway = container(resources)
    config = config_of(resources, pod, flags(gateway)["--config"])
    assert config is not None
    return image.settings_of(
        folder, config, {name: value for name, value in environment(gateway).items() if name.startswith("K3GW_")}
    )


def test_the_overlays_are_those_of_the_documentation() -> None:
    text = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    assert set(OVERLAYS) == set(re.findall(r"overlays/([\w-]+)", text))


def test_kubernetes_takes_every_resource(resources: list[Resource]) -> None:
    assert [] == [fault for resource in resources for fault in faults(resource)]


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("StatefulSet", "readOnlyRootFilesystem", "readOnlyRootFileSystem"), ("StatefulSet", "serviceName", "service"),
        ("Service", "targetPort", "target"), ("PodDisruptionBudget", "maxUnavailable", "maxMissing"), ("NetworkPolicy", "cidr", "range"),
        ("ServiceMonitor", "credentials", "secret"), ("ScaledObject", "pollingInterval", "interval"), ("InferencePool", "targetPorts", "ports"),
        ("HTTPRoute", "backendRefs", "backends"), ("HTTPRoute", "3660s", "1 hour"), ("LeaderWorkerSet", "restartPolicy", "restart"),
        ("LeaderWorkerSet", "failureThreshold", "failures"), ("LeaderWorkerSet", "size: 2", "size: two"),
    ],
)  # fmt: skip
def test_a_field_that_is_not_known_is_refused(kind: str, old: str, new: str) -> None:
    (resource,) = [one for one in [*_built("replicas"), *_built("multi-node")] if identity(one) == (kind, "k3-gateway")][:1]
    planted = yaml.safe_load(yaml.safe_dump(resource).replace(old, new))
    assert [] == faults(resource)
    assert [kind] == sorted({fault.split(":")[0] for fault in faults(planted)})


def test_all_that_is_named_exists(resources: list[Resource], tmp_path: Path) -> None:
    assert [] == mistakes(resources, tmp_path)


@pytest.mark.parametrize(
    ("overlay", "old", "new", "found"),
    [
        ("single-node", "key: metrics-key", "key: metric-key", "no key `metric-key`"),
        ("single-node", "key: cache-secret", "key: admin-key", "nothing uses ['cache-secret']"),
        ("single-node", "configMap:\n          name: k3-gateway-config", "configMap:\n          name: config", "no ConfigMap `config`"),
        ("single-node", "claimName: k3-gateway-models", "claimName: models", "no claim `models`"),
        ("single-node", "mountPath: /tmp\n          name: tmp", "mountPath: /tmp\n          name: temp", "the volume `temp`"),
        ("single-node", "path: /ready", "path: /readyz", "a probe asks `/readyz`"),
        ("single-node", "containerPort: 8000", "containerPort: 8080", "listens on 8000"),
        ("single-node", "targetPort: http", "targetPort: api", "no pod has the port `api`"),
        ("single-node", "serviceName: k3-gateway", "serviceName: k3", "no Service `k3`"),
        ("single-node", "serviceAccountName: k3-gateway", "serviceAccountName: default", "account or role `default`"),
        ("single-node", "K3GW_ENGINE__PROFILE", "K3GW_ENGINE__PROFIL", "no such setting"),
        ("single-node", "K3GW_STORAGE__LEDGER_URL", "K3GW_STORE__LEDGER_URL", "no section `store`"),
        ("single-node", "value: kimi-k3-b300", "value: kimi-k3-b400", "kimi-k3-b400"),
        ("single-node", "drain_timeout_s", "drain_timeout", "no such setting"),
        ("single-node", "model_path: /models", "model_path: /data", "the model `/data/kimi-k3` is on no volume"),
        ("single-node", "spool_path: /var/lib", "spool_path: /srv", "the spool `/srv/k3-gateway/spool` is on no volume"),
        ("single-node", "mountPath: /var/cache/k3-gateway", "mountPath: /cache", "must be volumes"),
        ("single-node", "- --config\n", "- --configuration\n", "`serve` has no `--configuration`"),
        ("single-node", "/etc/k3-gateway/config.yaml", "/etc/k3-gateway/gateway.yaml", "no file `/etc/k3-gateway/gateway.yaml`"),
        ("single-node", "path: /metrics", "path: /prometheus", "the gateway has no `/prometheus`"),
        ("single-node", "jobLabel: app.kubernetes.io/name", "jobLabel: job", "rules look for the job ['k3-gateway']"),
        ("single-node", "port: http\n      protocol", "port: web\n      protocol", "lets in to `web`"),
        ("replicas", "kind: StatefulSet\n    name: k3-gateway", "kind: StatefulSet\n    name: k3", "no StatefulSet `k3`"),
        ("replicas", "k3gw_queued_requests", "k3gw_waiting_requests", "no metric `k3gw_waiting_requests`"),
        ("replicas", "seats{namespace", "seats{tenant", "has no label `tenant`"),
        ("replicas", "namespace: k3-gateway", "namespace: k3", "looks at the namespace `k3-gateway`"),
        ("replicas", "kind: InferencePool\n      name: k3-gateway", "kind: InferencePool\n      name: k3", "no InferencePool `k3`"),
        ("replicas", "value: /v1", "value: /v2", "nothing below `/v2`"),
        ("replicas", "- number: 8000", "- number: 8001", "no pod has the port 8001"),
        ("replicas", "number: 9002", "number: 9003", "has the port 9003"),
        ("replicas", "--pool-name=k3-gateway", "--pool-name=k3", "no InferencePool `k3`"),
        ("replicas", "--grpc-health-port=9003", "--grpc-health-port=9004", "has no port"),
        ("replicas", "--config-file=/etc/picker/picker.yaml", "--config-file=/etc/picker.yaml", "no file `/etc/picker.yaml`"),
        ("replicas", "pluginRef: max-score-picker", "pluginRef: best-picker", "no plugin `best-picker`"),
        ("multi-node", "ray-node\n", "ray-start\n", "has no `/opt/k3-gateway/bin/ray-start`"),
        ("multi-node", "- worker\n", "- join\n", "has no `join`"),
        ("multi-node", "ray-node outlast", "ray-node wait", "has no `wait`"),
        ("multi-node", "claimName: k3-gateway-state", "claimName: k3-gateway-models", "nothing uses the claims ['k3-gateway-state']"),
        ("multi-node", "kimi-k3-b200-2node", "kimi-k3-b200-3node", "kimi-k3-b200-3node"),
    ],
)  # fmt: skip
def test_a_name_that_leads_nowhere_is_found(overlay: str, old: str, new: str, found: str, tmp_path: Path) -> None:
    text = _dumped(overlay)
    assert old in text
    planted = mistakes(list(yaml.load_all(text.replace(old, new), Loader=LOADER)), tmp_path)
    assert [one for one in planted if found in one], planted


def test_the_picker_is_configured_as_it_takes_it() -> None:
    (config,) = documents(FOLDER / "overlays" / "replicas" / "picker.yaml")
    jsonschema_rs.validate(PICKER, config)
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(PICKER, {**config, "plugins": [{"type": "prefix-scorer"}]})


def others_wait_s(gateway: Resource) -> int:
    """How long a container waits for other nodes before it begins to load."""
    if Path(gateway.get("command", [""])[0]).name != "ray-node":
        return 0
    script = (ROOT / "deploy" / "container" / "ray-node.sh").read_text(encoding="utf-8")
    (usual, *others) = set(re.findall(r"\$\{NODES_WAIT_S:-(\d+)\}", script))
    assert [] == others
    return int(environment(gateway).get("NODES_WAIT_S", usual))


def test_times_fit_the_gateway(resources: list[Resource], tmp_path: Path) -> None:
    pod, gateway = container(resources)
    settings = settings_of(resources, tmp_path)
    profile = load_profile(settings.engine.profile, settings.engine.overrides)
    before_s = gateway["lifecycle"]["preStop"]["sleep"]["seconds"]
    readiness = gateway["readinessProbe"]
    assert before_s >= 2 * readiness["periodSeconds"], "endpoints are to be gone before SIGTERM"
    assert pod.spec["terminationGracePeriodSeconds"] >= before_s + settings.http.drain_timeout_s + 30
    startup = gateway["startupProbe"]
    loading_s = startup["periodSeconds"] * startup["failureThreshold"]
    ready_s = max(3600, int(profile.environment["VLLM_ENGINE_READY_TIMEOUT_S"]))
    assert loading_s >= others_wait_s(gateway) + ready_s + 600, "those who wait are to give up first, and say why"
    assert ("/ready", "/ready", "/health") == tuple(
        gateway[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")
    )
    for other in pods(resources):
        if other.metadata["labels"].get("app.kubernetes.io/component") == "engine-node":
            assert other.spec["terminationGracePeriodSeconds"] > pod.spec["terminationGracePeriodSeconds"]
    for route in [one for one in resources if one["kind"] == "HTTPRoute"]:
        for rule in route["spec"]["rules"]:
            assert int(rule["timeouts"]["request"].removesuffix("s")) > settings.admission.request_timeout_s


def test_every_pod_is_as_restricted_as_its_namespace_asks(resources: list[Resource]) -> None:
    """Source: kubernetes.io, Pod Security Standards, `restricted`; beyond it, a read-only root and no service links."""
    assert "restricted" == the(resources, "Namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    for pod in pods(resources):
        context = pod.spec["securityContext"]
        assert (True, "RuntimeDefault") == (context["runAsNonRoot"], context["seccompProfile"]["type"])
        assert context["runAsUser"] > 0
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod.spec)
        assert pod.spec["enableServiceLinks"] is False, "`<SERVICE>_…` variables of a Service `k3gw` would be settings"
        assert {"configMap", "emptyDir", "persistentVolumeClaim"} >= {key for one in pod.spec["volumes"] for key in one} - {
            "name"
        }
        for one in pod.containers:
            own = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
            assert own == one["securityContext"]
            assert {"cpu", "memory"} <= set(one["resources"]["requests"])
            assert "memory" in one["resources"]["limits"]


def test_pods_run_as_the_user_of_the_image(resources: list[Resource]) -> None:
    user, _, group = image.stages()["vllm"].last("USER").partition(":")
    ours = [pod for pod in pods(resources) if pod.metadata["labels"]["app.kubernetes.io/name"] == "k3-gateway"]
    assert ours
    assert {(int(user), int(group))} == {
        (pod.spec["securityContext"]["runAsUser"], pod.spec["securityContext"]["runAsGroup"]) for pod in ours
    }


def test_no_secret_is_in_a_manifest(resources: list[Resource]) -> None:
    assert not [resource for resource in resources if resource["kind"] == "Secret"]
    _, gateway = container(resources)
    secret = re.compile("(_KEY|_SECRET|_URL)$")
    assert {"valueFrom"} == {
        "valueFrom" if "valueFrom" in one else "value" for one in gateway["env"] if secret.search(one["name"])
    }
    (example,) = documents(FOLDER / "secret.example.yaml")
    assert all("REPLACE" in value or "PASSWORD" in value for value in example["stringData"].values())
    assert not [path for path in FOLDER.rglob("kustomization.yaml") if "secret" in path.read_text(encoding="utf-8").lower()]


def test_the_network_lets_out_to_public_addresses_on_the_ports_that_images_come_from(
    resources: list[Resource], tmp_path: Path
) -> None:
    policy = the(resources, "NetworkPolicy")
    (rule,) = [rule for rule in policy["spec"]["egress"] if any("ipBlock" in to for to in rule["to"])]
    assert settings_of(resources, tmp_path).media.ports == [port["port"] for port in rule["ports"]]

    def is_let_out(address: str) -> bool:
        ip = ipaddress.ip_address(address)
        blocks = [to["ipBlock"] for to in rule["to"]]
        return any(
            ip in ipaddress.ip_network(block["cidr"])
            and not any(ip in ipaddress.ip_network(one) for one in block.get("except", []))
            for block in blocks
        )

    public = ["8.8.8.8", "1.1.1.1", "172.15.255.255", "172.32.0.1", "2606:4700::1111"]
    private = [
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "127.0.0.1",
        "0.0.0.0",
        "224.0.0.1",
    ]
    private += ["255.255.255.255", "::1", "fc00::1", "fe80::1", "ff02::1", "64:ff9b:1::1"]
    assert (public, []) == ([one for one in public if is_let_out(one)], [one for one in private if is_let_out(one)])


def test_nobody_reaches_a_pod_that_no_policy_lets_in_to(resources: list[Resource]) -> None:
    policies = [one["spec"] for one in resources if one["kind"] == "NetworkPolicy" and "Ingress" in one["spec"]["policyTypes"]]
    open_to_all = [
        pod.owner for pod in pods(resources) if not any(pod.matches(one["podSelector"]["matchLabels"]) for one in policies)
    ]
    assert [] == open_to_all
    assert [] == [rule for policy in policies for rule in policy["ingress"] if not rule.get("from")]


def test_rules_are_those_of_prometheus(tmp_path: Path) -> None:
    assert prometheus_rule() == TARGET.read_text(encoding="utf-8"), "run `python -m deploy.kubernetes`"
    (resource,) = documents(TARGET)
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(resource["spec"]), encoding="utf-8")
    done = subprocess.run(
        [needs("promtool"), "check", "rules", str(tmp_path / "rules.yml")], capture_output=True, text=True, timeout=60
    )
    assert 0 == done.returncode, done.stdout + done.stderr


def _gateway_of(overlay: str) -> tuple[Pod, Resource]:
    return container(_built(overlay))


def test_the_gateway_is_the_same_on_one_node_as_on_two() -> None:
    (pod, one), (other_pod, other) = _gateway_of("single-node"), _gateway_of("multi-node")
    same = ("image", "args", "readinessProbe", "livenessProbe", "lifecycle", "securityContext", "volumeMounts")
    assert [one[name] for name in same] == [other[name] for name in same]
    assert pod.spec["securityContext"] == other_pod.spec["securityContext"]
    names = [{variable["name"] for variable in gateway["env"]} for gateway in (one, other)]
    assert names[0] <= names[1]


def test_the_vendor_is_one_line(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "kubernetes")
    path = tmp_path / "kubernetes" / "overlays" / "single-node" / "kustomization.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("components/nvidia ", "components/amd "), encoding="utf-8")
    resources = build(path.parent)
    assert [] == mistakes(resources, tmp_path)
    limits = container(resources)[1]["resources"]["limits"]
    assert "8" == limits["amd.com/gpu"]
    assert not [name for name in limits if "nvidia" in name]


def test_replicas_are_keda_s_to_count() -> None:
    assert "replicas" not in the(_built("replicas"), "StatefulSet")["spec"]
    scaled = the(_built("replicas"), "ScaledObject")["spec"]
    assert 2 <= scaled["minReplicaCount"] <= scaled["fallback"]["replicas"] <= scaled["maxReplicaCount"]
