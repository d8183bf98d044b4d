"""What builds the manifests for the suite builds what Kubernetes' own tool does, and passes over nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.expressions import ROOT
from tests.deploy.kustomization import build, identity

OVERLAYS = sorted((ROOT / "deploy" / "kubernetes" / "overlays").iterdir())
KUBECTL = shutil.which("kubectl")


def test_what_is_not_known_of_a_kustomization_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("namePrefix: x-\n", encoding="utf-8")
    with pytest.raises(ValueError, match="namePrefix"):
        build(tmp_path)
    (tmp_path / "kustomization.yaml").write_text("patches: [{target: {kind: Service, name: x}, patch: '[]'}]\n", encoding="utf-8")
    with pytest.raises(ValueError, match="finds 0"):
        build(tmp_path)


if KUBECTL:  # not on every machine, and nothing else needs it

    @pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
    def test_kustomize_builds_the_same(overlay: Path) -> None:
        done = subprocess.run([str(KUBECTL), "kustomize", str(overlay)], capture_output=True, text=True, timeout=60)
        assert 0 == done.returncode, done.stderr
        text = re.sub(r"\b(k3-gateway-picker)-[a-z0-9]{10}\b", r"\1", done.stdout)  # of its content, which the helper leaves out
        theirs: list[Any] = list(yaml.safe_load_all(text))
        assert {identity(one): one for one in theirs} == {identity(one): one for one in build(overlay)}
