"""Writes the rules of deploy/prometheus as the Prometheus operator takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

RULES: Final = Path(__file__).parents[1] / "prometheus" / "rules"
TARGET: Final = Path(__file__).parent / "components" / "monitoring" / "prometheusrule.yaml"
_HEAD: Final = "# Made by `python -m deploy.kubernetes` from deploy/prometheus/rules; change those.\n"


def prometheus_rule() -> str:
    """All groups of all rule files, as one resource."""
    files = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(RULES.glob("*.yml"))]
    resource: dict[str, Any] = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "k3-gateway", "labels": {"app.kubernetes.io/name": "k3-gateway"}},
        "spec": {"groups": [group for file in files for group in file["groups"]]},
    }
    return _HEAD + yaml.safe_dump(resource, sort_keys=False, width=130, allow_unicode=True)


def main() -> None:
    """Write it where the component has it."""
    TARGET.write_text(prometheus_rule(), encoding="utf-8")


if __name__ == "__main__":
    main()
