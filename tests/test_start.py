"""What a gateway loads before it serves: what it can do without, it does without, as each library costs every start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEEDLESS = {"PIL", "alembic", "opentelemetry", "redis", "torch", "transformers", "vllm", "xgrammar"}
"""With the scripted engine, limits in memory, no traces, and a store that is as this version wants it."""


def test_what_is_not_used_is_not_loaded() -> None:
    code = "import sys, server.serving, server.engine.scripted.engine; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    assert {"fastapi", "sqlalchemy", "server"} <= loaded
    assert set() == NEEDLESS & loaded
