"""The pods of built manifests: what they run, mount and are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from tests.deploy.expressions import ROOT
from tests.deploy.kustomization import Resource

GATEWAY = "gateway"
SECRET = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "secret.example.yaml").read_text(encoding="utf-8"))
"""The example, which says which keys there must be."""


@dataclass(frozen=True)
class Pod:
    """One pod template. `claims`: what a StatefulSet makes for each of its pods."""

    owner: str
    metadata: Resource
    spec: Resource
    claims: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return labels.items() <= self.metadata["labels"].items()

    @property
    def containers(self) -> list[Resource]:
        return [*self.spec["containers"], *self.spec.get("initContainers", [])]

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for container in self.containers for port in container.get("ports", [])}


def pods(resources: list[Resource]) -> list[Pod]:
    """Of all workloads."""
    found = []
    for resource in resources:
        spec, kind = resource.get("spec", {}), resource["kind"]
        for name in ("leaderTemplate", "workerTemplate"):
            if template := spec.get("leaderWorkerTemplate", {}).get(name):
                found.append(Pod(f"{kind} {name}", template["metadata"], template["spec"]))
        if "template" in spec:
            claims = tuple(claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", []))
            found.append(
                Pod(f"{kind} {resource['metadata']['name']}", spec["template"]["metadata"], spec["template"]["spec"], claims)
            )
    return found


def container(resources: list[Resource], name: str = GATEWAY) -> tuple[Pod, Resource]:
    """The one with that name, and its pod."""
    (found,) = [(pod, one) for pod in pods(resources) for one in pod.containers if one["name"] == name]
    return found


def config_of(resources: list[Resource], pod: Pod, path: str) -> str | None:
    """The text of the file that a container of `pod` sees at `path`, from a ConfigMap; None where there is none."""
    folder, _, name = path.rpartition("/")
    maps = {one["metadata"]["name"]: one.get("data", {}) for one in resources if one["kind"] == "ConfigMap"}
    volumes = {volume["name"]: volume["configMap"]["name"] for volume in pod.spec["volumes"] if "configMap" in volume}
    for one in pod.containers:
        for mount in one.get("volumeMounts", []):
            if mount["mountPath"] == folder and mount["name"] in volumes:
                return maps.get(volumes[mount["name"]], {}).get(name)
    return None


def flags(one: Resource) -> dict[str, str]:
    """`--name value` and `--name=value` of its arguments."""
    words = iter(one.get("args", []))
    pairs = [word.split("=", 1) if "=" in word else [word, next(words, "")] for word in words]
    return dict(pairs)


def environment(one: Resource) -> dict[str, str]:
    """What the container sees, with the example's secrets."""
    found = {}
    for variable in one.get("env", []):
        reference = variable.get("valueFrom", {}).get("secretKeyRef")
        found[variable["name"]] = variable.get("value") or (SECRET["stringData"].get(reference["key"], "") if reference else "x")
    return found
