"""Writes the dashboards."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.grafana.operation import operation
from deploy.grafana.tenants import tenants

FOLDER: Final = Path(__file__).parent / "dashboards"


def dashboards() -> dict[str, str]:
    """Of each file's name, what is in it."""
    made = {"operation.json": operation(), "tenants.json": tenants()}
    return {name: JSONEncoder(sort_keys=True, indent=1).encode(page.build()) + "\n" for name, page in made.items()}


def main() -> None:
    """Write all of them where Grafana's provisioning looks."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in dashboards().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
