"""What manifests name, and whether it exists: in the other manifests, in the image, in the gateway.

`mistakes` finds every name that leads nowhere. It is given manifests with planted mistakes, too, so that it can't be asleep.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from server.engine.profiles import ProfileError
from server.settings import SettingsError
from tests.architecture.test_surface import all_routes
from tests.deploy import image
from tests.deploy.expressions import ROOT, Expression
from tests.deploy.kustomization import Resource, walk
from tests.deploy.pods import SECRET, config_of, container, environment, flags, pods

RAY_NODE = f"{image.BIN}/ray-node"
PROMETHEUS_OWN = {"namespace", "pod", "service", "job", "instance", "container", "endpoint"}


def mistakes(resources: list[Resource], folder: Path) -> list[str]:
    """Every name that leads nowhere. `folder`: where files can be put for a moment."""
    found = []
    for check in (_secrets, _volumes, _accounts, _pod_ports, _selectors, _services, _routes, _scaling, _monitoring, _picker):
        found += list(check(resources))
    return found + list(_gateway(resources, folder)) + list(_programs(resources))


def _of(resources: list[Resource], *kinds: str) -> list[Resource]:
    return [resource for resource in resources if resource["kind"] in kinds]


def _names(resources: list[Resource], kind: str) -> set[str]:
    return {resource["metadata"]["name"] for resource in _of(resources, kind)}


def _secrets(resources: list[Resource]) -> Iterator[str]:
    uses = [one["secretKeyRef"] for one in walk(resources, lambda value: "secretKeyRef" in value)]
    uses += [one["credentials"] for one in walk(resources, lambda value: "credentials" in value)]
    for use in uses:
        if use["name"] != SECRET["metadata"]["name"] or use["key"] not in SECRET["stringData"]:
            yield f"there is no key `{use['key']}` of a Secret `{use['name']}`"
    optional = set() if _of(resources, "LeaderWorkerSet") else {"ray-token"}
    if unused := set(SECRET["stringData"]) - {use["key"] for use in uses} - optional:
        yield f"nothing uses {sorted(unused)} of the Secret"


def _volumes(resources: list[Resource]) -> Iterator[str]:
    claims, maps = _names(resources, "PersistentVolumeClaim"), _names(resources, "ConfigMap")
    for pod in pods(resources):
        volumes = {volume["name"] for volume in pod.spec.get("volumes", [])} | set(pod.claims)
        mounted = {mount["name"] for one in pod.containers for mount in one.get("volumeMounts", [])}
        for name in volumes ^ mounted:
            yield f"{pod.owner}: the volume `{name}` is not there, or mounted by nobody"
        for volume in pod.spec.get("volumes", []):
            if "persistentVolumeClaim" in volume and volume["persistentVolumeClaim"]["claimName"] not in claims:
                yield f"{pod.owner}: there is no claim `{volume['persistentVolumeClaim']['claimName']}`"
            if "configMap" in volume and volume["configMap"]["name"] not in maps:
                yield f"{pod.owner}: there is no ConfigMap `{volume['configMap']['name']}`"
    if unused := claims - {
        one["persistentVolumeClaim"]["claimName"] for one in walk(resources, lambda value: "persistentVolumeClaim" in value)
    }:
        yield f"nothing uses the claims {sorted(unused)}"


def _accounts(resources: list[Resource]) -> Iterator[str]:
    accounts = _names(resources, "ServiceAccount")
    used = {pod.spec["serviceAccountName"] for pod in pods(resources)}
    bound = {subject["name"] for binding in _of(resources, "RoleBinding") for subject in binding["subjects"]}
    roles = {binding["roleRef"]["name"] for binding in _of(resources, "RoleBinding")}
    for name in (used ^ accounts) | (bound - accounts) | (roles ^ _names(resources, "Role")):
        yield f"the account or role `{name}` is not there, or used by nobody"


def _pod_ports(resources: list[Resource]) -> Iterator[str]:
    public = {path for _, path in all_routes()}
    for pod in pods(resources):
        for probe in walk(pod.spec["containers"], lambda value: "httpGet" in value):
            if probe["httpGet"]["port"] not in pod.ports:
                yield f"{pod.owner}: a probe asks the port `{probe['httpGet']['port']}`"
            if probe["httpGet"]["path"] not in public:
                yield f"{pod.owner}: a probe asks `{probe['httpGet']['path']}`"
        for probe in walk(pod.spec["containers"], lambda value: "grpc" in value):
            if probe["grpc"]["port"] not in pod.ports.values():
                yield f"{pod.owner}: a probe asks the port {probe['grpc']['port']}"


def _selectors(resources: list[Resource]) -> Iterator[str]:
    """Of policies, budgets, pools and workloads: each finds a pod; anti-affinity finds its own."""
    for resource in _of(resources, "NetworkPolicy", "PodDisruptionBudget", "InferencePool", "StatefulSet", "Deployment"):
        spec = resource["spec"]
        selector = spec.get("selector") or spec["podSelector"]
        hit = [pod for pod in pods(resources) if pod.matches(selector["matchLabels"])]
        if not hit:
            yield f"{resource['kind']} {resource['metadata']['name']}: selects no pod by {selector['matchLabels']}"
        if resource["kind"] == "NetworkPolicy":
            ports = [port["port"] for rule in spec.get("ingress", []) for port in rule.get("ports", [])]
            yield from (f"NetworkPolicy: lets in to `{name}`" for name in ports if not any(name in pod.ports for pod in hit))
    for pod in pods(resources):
        for one in walk(pod.spec, lambda value: "labelSelector" in value):
            if not pod.matches(one["labelSelector"]["matchLabels"]):
                yield f"{pod.owner}: keeps apart from {one['labelSelector']['matchLabels']}, which it is not"


def _services(resources: list[Resource]) -> Iterator[str]:
    for service in _of(resources, "Service"):
        hit = [pod for pod in pods(resources) if pod.matches(service["spec"]["selector"])]
        for port in service["spec"]["ports"]:
            if not any(port["targetPort"] in pod.ports for pod in hit):
                yield f"Service {service['metadata']['name']}: no pod has the port `{port['targetPort']}`"
    for workload in _of(resources, "StatefulSet"):
        if workload["spec"]["serviceName"] not in _names(resources, "Service"):
            yield f"StatefulSet: there is no Service `{workload['spec']['serviceName']}`"


def _routes(resources: list[Resource]) -> Iterator[str]:
    paths = {path for _, path in all_routes()}
    for route in _of(resources, "HTTPRoute"):
        for rule in route["spec"]["rules"]:
            for reference in rule["backendRefs"]:
                if reference["name"] not in _names(resources, reference.get("kind", "Service")):
                    yield f"HTTPRoute: there is no {reference.get('kind', 'Service')} `{reference['name']}`"
            for match in rule["matches"]:
                if not any(path.startswith(match["path"]["value"] + "/") for path in paths):
                    yield f"HTTPRoute: the gateway has nothing below `{match['path']['value']}`"
    for pool in _of(resources, "InferencePool"):
        for pod in [pod for pod in pods(resources) if pod.matches(pool["spec"]["selector"]["matchLabels"])]:
            yield from (
                f"InferencePool: no pod has the port {port['number']}"
                for port in pool["spec"]["targetPorts"]
                if port["number"] not in pod.ports.values()
            )
        reference = pool["spec"]["endpointPickerRef"]
        services = [service for service in _of(resources, "Service") if service["metadata"]["name"] == reference["name"]]
        if not any(port["port"] == reference["port"]["number"] for service in services for port in service["spec"]["ports"]):
            yield f"InferencePool: no Service `{reference['name']}` has the port {reference['port']['number']}"


def _scaling(resources: list[Resource]) -> Iterator[str]:
    for scaled in _of(resources, "ScaledObject"):
        target = scaled["spec"]["scaleTargetRef"]
        if target["name"] not in _names(resources, target["kind"]):
            yield f"ScaledObject: there is no {target['kind']} `{target['name']}`"
        for trigger in scaled["spec"]["triggers"]:
            expression = Expression("ScaledObject", trigger["metadata"]["query"])
            if not expression.selectors:
                yield "ScaledObject: its query reads nothing"
            for selector in expression.selectors:
                if selector.metric is None:
                    yield f"ScaledObject: there is no metric `{selector.name}`"
                for label, _, value in selector.matchers:
                    if label not in PROMETHEUS_OWN | set(selector.metric.labels if selector.metric else ()):
                        yield f"ScaledObject: `{selector.name}` has no label `{label}`"
                    if label == "namespace" and value != scaled["metadata"]["namespace"]:
                        yield f"ScaledObject: looks at the namespace `{value}`"


def _monitoring(resources: list[Resource]) -> Iterator[str]:
    paths = {path for _, path in all_routes()}
    for monitor in _of(resources, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"]
        services = [one for one in _of(resources, "Service") if wanted.items() <= one["metadata"].get("labels", {}).items()]
        if len(services) != 1:
            yield f"ServiceMonitor: {len(services)} Services have {wanted}; a pod would be scraped as often"
        for endpoint in monitor["spec"]["endpoints"]:
            if not any(port["name"] == endpoint["port"] for service in services for port in service["spec"]["ports"]):
                yield f"ServiceMonitor: no Service has the port `{endpoint['port']}`"
            if endpoint["path"] not in paths:
                yield f"ServiceMonitor: the gateway has no `{endpoint['path']}`"
        jobs = {service["metadata"]["labels"].get(monitor["spec"]["jobLabel"]) for service in services}
        rules = json.dumps(_of(resources, "PrometheusRule"))
        if missing := set(re.findall(r'job=\\"([^"\\]*)\\"', rules)) - jobs:
            yield f"ServiceMonitor: rules look for the job {sorted(missing)}, and it makes {sorted(map(str, jobs))}"


def _picker(resources: list[Resource]) -> Iterator[str]:
    for pod in pods(resources):
        for one in [one for one in pod.containers if one["name"] == "picker"]:
            said = flags(one)
            text = config_of(resources, pod, said.get("--config-file", ""))
            if text is None:
                yield f"picker: there is no file `{said.get('--config-file')}`"
                continue
            plugins = {plugin.get("name", plugin["type"]): plugin for plugin in yaml.safe_load(text)["plugins"]}
            named = {reference["pluginRef"] for reference in walk(yaml.safe_load(text), lambda value: "pluginRef" in value)}
            named |= {
                value
                for plugin in plugins.values()
                for name, value in plugin.get("parameters", {}).items()
                if name.endswith("ProducerName")
            }
            yield from (f"picker: there is no plugin `{name}`" for name in named - set(plugins))
            if said.get("--pool-name") not in _names(resources, "InferencePool"):
                yield f"picker: there is no InferencePool `{said.get('--pool-name')}`"
            if {said.get("--grpc-port"), said.get("--grpc-health-port")} - {str(port) for port in pod.ports.values()}:
                yield "picker: listens where its pod has no port"


def _gateway(resources: list[Resource], folder: Path) -> Iterator[str]:
    """Its settings are some; what they name is where they say."""
    pod, one = container(resources)
    yield from (f"gateway: `serve` has no `{name}`" for name in set(flags(one)) - image.serve_flags())
    text = config_of(resources, pod, flags(one).get("--config", ""))
    if text is None:
        yield f"gateway: there is no file `{flags(one).get('--config')}`"
        return
    try:
        settings = image.settings_of(
            folder, text, {name: value for name, value in environment(one).items() if name.startswith("K3GW_")}
        )
    except (SettingsError, ProfileError) as error:
        yield f"gateway: {error}"
        return
    if settings.http.port != pod.ports.get("http"):
        yield f"gateway: listens on {settings.http.port}, and its pod's port is {pod.ports.get('http')}"
    writable = [mount["mountPath"] for mount in one["volumeMounts"] if not mount.get("readOnly")]
    readable = [mount["mountPath"] for mount in one["volumeMounts"]]
    if not any(settings.storage.spool_path.is_relative_to(path) for path in writable):
        yield f"gateway: the spool `{settings.storage.spool_path}` is on no volume"
    if settings.engine.model_path is None or not any(settings.engine.model_path.is_relative_to(path) for path in readable):
        yield f"gateway: the model `{settings.engine.model_path}` is on no volume"
    if missing := image.stages()["vllm"].volumes - set(writable):
        yield f"gateway: {sorted(missing)} must be volumes: the image writes there"


def _programs(resources: list[Resource]) -> Iterator[str]:
    """What pods run instead of the image's own start is in the image, and knows what it is told."""
    there = image.programs(image.stages()["vllm"])
    script = (ROOT / "deploy" / "container" / "ray-node.sh").read_text(encoding="utf-8")
    known = set(re.findall(r"^    (\w+)\)$", script, re.MULTILINE))
    for pod in pods(resources):
        for one in pod.containers:
            texts = [
                " ".join(command)
                for command in (
                    one.get("command"),
                    *(hook["command"] for hook in walk(one, lambda value: isinstance(value.get("command"), list))),
                )
                if command
            ]
            for text in texts:
                yield from (
                    f"{pod.owner}: the image has no `{path}`"
                    for path in re.findall(rf"{image.BIN}/[\w-]+", text)
                    if path not in there
                )
                yield from (
                    f"{pod.owner}: `ray-node` has no `{verb}`"
                    for verb in re.findall(rf"{RAY_NODE} (\w+)", text)
                    if verb not in known
                )
