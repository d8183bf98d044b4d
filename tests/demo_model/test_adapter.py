"""The adapter that the package carries, and what its documentation says about it."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from server.demo_model.build import ADAPTER
from server.demo_model.tokenizer import CONTROL_TOKENS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "demo-model.md"


def _header() -> dict[str, dict[str, object]]:
    with ADAPTER.open("rb") as file:
        header: dict[str, dict[str, object]] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return header


def test_adapter_is_small_enough_for_a_repository() -> None:
    assert ADAPTER.stat().st_size <= 8_000_000


def test_adapter_has_a_row_for_each_control_token() -> None:
    assert [len(CONTROL_TOKENS), 576] == _header()["added_rows"]["shape"]


def test_document_describes_this_adapter() -> None:
    """Its line `Adapter: 300 steps, seed 7, rank 8, sha256 …` is of this file."""
    metadata = _header()["__metadata__"]
    found = re.search(
        r"^Adapter: (\d+) steps, seed (\d+), rank (\d+), sha256 `([0-9a-f]{64})`", DOCUMENT.read_text("utf-8"), re.M
    )
    assert found is not None
    sha256 = hashlib.sha256(ADAPTER.read_bytes()).hexdigest()
    assert (metadata["steps"], metadata["seed"], metadata["rank"], sha256) == found.groups()


def test_adapter_is_of_a_finished_run() -> None:
    metadata = _header()["__metadata__"]
    assert metadata["steps"] == metadata["steps_done"]
