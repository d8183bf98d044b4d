"""What a gateway loads before it serves: what it can do without, it does without, as each library costs every start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEEDLESS = {"PIL", "opentelemetry", "redis", "sqlalchemy.dialects.postgresql", "torch", "transformers", "vllm", "xgrammar"}
"""With the scripted engine, limits in memory, no traces, and a store in a file."""


def test_what_is_not_used_is_not_loaded() -> None:
    code = "import sys, server.serving, server.engine.scripted.engine; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    assert {"fastapi", "sqlalchemy", "server"} <= loaded
    assert set() == NEEDLESS & loaded
