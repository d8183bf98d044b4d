"""What `docs/deploy.md` says is so: its files, links, times and names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from server.engine.profiles import load_profile
from tests.deploy.expressions import ROOT
from tests.deploy.image import stages
from tests.deploy.kustomization import build, documents
from tests.deploy.pods import container
from tests.deploy.test_rules import anchors

PAGE = ROOT / "docs" / "deploy.md"
TEXT = PAGE.read_text(encoding="utf-8")
KUBERNETES = ROOT / "deploy" / "kubernetes"


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#\s]*)(?:#([\w-]+))?\)", TEXT)
    assert len(links) > 5
    for path, anchor in links:
        target = (PAGE.parent / path).resolve() if path else PAGE
        assert target.exists(), path
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), anchor


def test_files_that_it_names_exist() -> None:
    named = re.findall(r"(?<![\w/.])(?:deploy|overlays|components|base|config)/[\w./-]*\w", TEXT)
    assert len(set(named)) > 10
    places = (ROOT, KUBERNETES, ROOT / "deploy" / "compose")
    assert [] == [name for name in set(named) if not any((place / name).exists() for place in places)]


def test_times_that_it_names_are_those_of_the_files() -> None:
    _, gateway = container(build(KUBERNETES / "overlays" / "single-node"))
    config = yaml.safe_load((KUBERNETES / "base" / "config.yaml").read_text(encoding="utf-8"))
    stack = yaml.safe_load((ROOT / "deploy" / "compose" / "config" / "config.yaml").read_text(encoding="utf-8"))
    startup = gateway["startupProbe"]
    ready_s = int(load_profile("kimi-k3-b300").environment["VLLM_ENGINE_READY_TIMEOUT_S"])
    said = [
        f"may take {startup['periodSeconds'] * startup['failureThreshold'] // 60} minutes",
        f"gives up after {ready_s // 60} and says why",
        f"for {gateway['lifecycle']['preStop']['sleep']['seconds']} s a pod",
        f"drains for up to {config['http']['drain_timeout_s']} s",
        f"streams have {stack['http']['drain_timeout_s']} s to end",
    ]
    assert [] == [one for one in said if one not in TEXT]
    (scaled,) = documents(KUBERNETES / "overlays" / "replicas" / "scaledobject.yaml")
    down = scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    assert (3600, 1200) == (down["stabilizationWindowSeconds"], down["policies"][0]["periodSeconds"])
    assert "only after an hour\nbelow that, one each 20 minutes" in TEXT
    assert (2, 8) == (scaled["spec"]["minReplicaCount"], scaled["spec"]["maxReplicaCount"])
    assert "two to eight of them" in TEXT


@pytest.mark.parametrize("name", ["vllm", "scripted"], ids=lambda name: f"target-{name}")
def test_what_it_says_of_the_image_is_so(name: str) -> None:
    stage = stages()[name]
    assert f"as user {stage.last('USER').replace(':', ', group ')}" in TEXT
    assert " ".join([*stage.words("ENTRYPOINT"), *stage.words("CMD")]) in TEXT
    assert all(f"`{path}`" in TEXT or f"`{path}` (" in TEXT for path in stage.volumes)
    for argument in re.findall(r"--build-arg (\w+)=", TEXT):
        assert f"ARG {argument}" in (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert set(re.findall(r"--target (\w+)", TEXT)) <= set(stages())


def test_every_secret_of_the_stack_is_made_by_its_commands() -> None:
    lines = (ROOT / "deploy" / "compose" / ".env.example").read_text(encoding="utf-8").splitlines()
    empty = [line.removesuffix("=") for line in lines if line.endswith("=")]
    (loop,) = re.findall(r"for name in ([A-Z_ ]*); do", TEXT)
    assert empty == loop.split()
    (secret,) = documents(KUBERNETES / "secret.example.yaml")
    assert set(secret["stringData"]) == set(re.findall(r"--from-literal=([\w-]+)=", TEXT))
    assert set(secret["stringData"]) == set(
        re.findall(r"--from-literal=([\w-]+)=", Path(KUBERNETES / "secret.example.yaml").read_text(encoding="utf-8"))
    )
