"""The job that fills the volume of checkpoints: as the gateway's pods are, and to where they read."""

from __future__ import annotations

import yaml

from tests.deploy import image
from tests.deploy.custom_resources import faults
from tests.deploy.expressions import ROOT
from tests.deploy.kustomization import build, documents, identity
from tests.deploy.pods import container, pods

FOLDER = ROOT / "deploy" / "kubernetes"


def test_the_model_is_fetched_to_where_the_gateway_reads_it() -> None:
    (job,) = documents(FOLDER / "fetch-model.yaml")
    assert [] == faults(job)
    overlay = build(FOLDER / "overlays" / "single-node")
    (pod,), (reader, gateway) = pods([job]), container(overlay)
    config = yaml.safe_load((FOLDER / "base" / "config.yaml").read_text(encoding="utf-8"))
    path = config["engine"]["model_path"]
    (fetch,) = pod.containers
    assert gateway["image"] == fetch["image"]
    assert f'local_dir="{path}"' in fetch["args"][0]
    names = {identity(resource) for resource in overlay}
    assert ("Namespace", job["metadata"]["namespace"]) in names
    mounts = {mount["mountPath"]: mount["name"] for mount in fetch["volumeMounts"]}
    claims = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in pod.spec["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert ("PersistentVolumeClaim", claims[mounts["/models"]]) in names
    assert pod.spec["securityContext"] == reader.spec["securityContext"]
    assert fetch["securityContext"] == gateway["securityContext"]
    assert image.stages()["vllm"].volumes <= set(mounts)
