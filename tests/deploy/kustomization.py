"""Kustomize, as far as `deploy/kubernetes` uses it, so that the suite needs no program of Kubernetes'.

What it does not know is an error, so nothing passes unread. Where `kubectl` is installed, a test holds it to what that makes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

Resource = dict[str, Any]
KNOWN = {
    "apiVersion", "kind", "namespace", "resources", "components", "configMapGenerator", "patches", "images",
}  # fmt: skip
CLUSTER_WIDE = ("Namespace",)


def build(folder: Path) -> list[Resource]:
    """All resources of the overlay in `folder`."""
    return _build(folder, [])


def _build(folder: Path, below: list[Resource]) -> list[Resource]:
    """`below`: what a component is applied to."""
    content = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    if unknown := set(content) - KNOWN:
        raise ValueError(f"{folder}: kustomization.yaml has what is not known here: {sorted(unknown)}")
    resources = list(below)
    for name in content.get("resources", []):
        path = folder / name
        resources += _build(path, []) if path.is_dir() else [one for one in documents(path) if one]
    resources += [_config_map(folder, one) for one in content.get("configMapGenerator", [])]
    for name in content.get("components", []):
        resources = _build(folder / name, resources)
    for patch in content.get("patches", []):
        _patch(resources, patch)
    for resource in resources:
        if "namespace" in content and resource["kind"] not in CLUSTER_WIDE:
            resource["metadata"]["namespace"] = content["namespace"]
        _set_images(resource, content.get("images", []))
    names = [identity(resource) for resource in resources]
    if len(set(names)) < len(names):
        raise ValueError(f"{folder}: has the same resource twice: {sorted(names)}")
    return resources


def identity(resource: Resource) -> tuple[str, str]:
    """Kind and name."""
    return resource["kind"], resource["metadata"]["name"]


def documents(path: Path) -> Iterator[Resource]:
    """Those of one file."""
    yield from yaml.safe_load_all(path.read_text(encoding="utf-8"))


def _config_map(folder: Path, generator: dict[str, Any]) -> Resource:
    if unknown := set(generator) - {"name", "files", "options"}:
        raise ValueError(f"{folder}: configMapGenerator has what is not known here: {sorted(unknown)}")
    options = generator.get("options", {})
    metadata: dict[str, Any] = {"name": generator["name"]}
    if "labels" in options:
        metadata["labels"] = options["labels"]
    data = {name: (folder / name).read_text(encoding="utf-8") for name in generator["files"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _patch(resources: list[Resource], patch: dict[str, Any]) -> None:
    """JSON patches with a target of kind and name; they must find one."""
    target = patch["target"]["kind"], patch["target"]["name"]
    found = [resource for resource in resources if identity(resource) == target]
    if len(found) != 1 or set(patch) != {"target", "patch"} or set(patch["target"]) != {"kind", "name"}:
        raise ValueError(f"the patch of {target} finds {len(found)} resources")
    for operation in yaml.safe_load(patch["patch"]):
        _apply(found[0], operation)


def _apply(resource: Resource, operation: dict[str, Any]) -> None:
    *parents, last = [step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:]]
    at: Any = resource
    for step in parents:
        at = at[int(step)] if isinstance(at, list) else at[step]
    value = copy.deepcopy(operation.get("value"))
    match operation["op"]:
        case "add" if last == "-":
            at.append(value)
        case "add":
            at[last] = value
        case "replace":
            assert last in at, operation
            at[last] = value
        case "remove":
            del at[last]
        case other:
            raise ValueError(f"the operation `{other}` is not known here")


def _set_images(resource: Resource, images: list[dict[str, str]]) -> None:
    new = {image["name"]: f"{image['newName']}:{image['newTag']}" for image in images}
    for container in walk(resource, lambda value: "image" in value and "name" in value):
        container["image"] = new.get(container["image"], container["image"])


def walk(value: Any, wanted: Callable[[dict[str, Any]], bool]) -> Iterator[dict[str, Any]]:
    """Every mapping in `value` that is wanted, at whatever depth."""
    if isinstance(value, dict):
        if wanted(value):
            yield value
        for inner in value.values():
            yield from walk(inner, wanted)
    elif isinstance(value, list):
        for inner in value:
            yield from walk(inner, wanted)
