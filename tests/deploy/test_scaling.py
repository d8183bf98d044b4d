"""How many replicas the load is worth, as Prometheus answers what KEDA asks."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.expressions import ROOT
from tests.deploy.kustomization import documents
from tests.services.prometheus import needs

SEATS = 128
PATH = ROOT / "deploy" / "kubernetes" / "overlays" / "replicas" / "scaledobject.yaml"


def trigger() -> dict[str, Any]:
    (scaled,) = documents(PATH)
    (found,) = scaled["spec"]["triggers"]
    return dict(found)


def answer(folder: Path, running: list[int], queued: dict[str, int], expected: float | None) -> None:
    """Fails unless Prometheus answers `expected`, None for nothing, where replicas run and tenants wait for so many requests."""
    labels = [f'{{namespace="k3-gateway",pod="k3-gateway-{number}"}}' for number in range(len(running))]
    series = [(f"k3gw_engine_seats{label}", SEATS) for label in labels]
    series += [(f"k3gw_engine_running_requests{label}", number) for label, number in zip(labels, running, strict=True)]
    series += [(f'k3gw_queued_requests{{namespace="k3-gateway",tenant="{tenant}"}}', number) for tenant, number in queued.items()]
    series += [('k3gw_engine_running_requests{namespace="other"}', 1000), ('k3gw_queued_requests{namespace="other"}', 1000)]
    samples = [] if expected is None else [{"labels": "{}", "value": expected}]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": f"{value}x5"} for name, value in series],
        "promql_expr_test": [{"expr": trigger()["metadata"]["query"], "eval_time": "4m", "exp_samples": samples}],
    }
    (folder / "test.yml").write_text(yaml.safe_dump({"tests": [test]}), encoding="utf-8")
    done = subprocess.run(
        [needs("promtool"), "test", "rules", str(folder / "test.yml")], capture_output=True, text=True, timeout=60
    )
    assert 0 == done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("running", "queued", "replicas"),
    [
        ([0, 0], {}, 0),
        ([60, 60], {}, 2),  # 67 % of 179 seats' worth: two are right
        ([128, 128], {}, 3),  # full, and nobody waits: the next one would
        ([128, 128], {"acme": 40, "other": 60}, 4),
        ([128, 128, 128, 128], {}, 6),  # the queue is empty because there are four: they are not too many
        ([20, 10, 10, 20], {}, 1),
    ],
)
def test_replicas_follow_what_runs_and_what_waits(
    tmp_path: Path, running: list[int], queued: dict[str, int], replicas: int
) -> None:
    worth = (sum(running) + sum(queued.values())) / (0.7 * SEATS)
    answer(tmp_path, running, queued, worth)
    assert replicas == math.ceil(worth / float(trigger()["metadata"]["threshold"]))


def test_where_no_replica_tells_anything_keda_is_told_of_a_failure(tmp_path: Path) -> None:
    """No seats: no answer, which is not 0, and so no reason to end replicas that are loading."""
    answer(tmp_path, [], {}, None)
    assert "false" == trigger()["metadata"]["ignoreNullValues"]
