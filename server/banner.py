"""What a person reads who has started a gateway: where it is, and how to send it a first request."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from server.settings import Settings
from server.tenancy.keys import KeyTable
from server.tenancy.registry import FIRST_TENANT


def say(text: str) -> None:
    """A line for the person who started the gateway, who may be gone: `serve | tee log`, and Ctrl-C ends `tee` first."""
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)  # noqa: T201


def key_shown(settings: Settings, first_key: list[str]) -> str | None:
    """How a person who reads the banner writes a key: as it is only where it was made just now. None where none is needed."""
    if settings.tenancy.auth == "off":
        return None
    if settings.tenancy.key is not None:
        return "$K3GW_TENANCY__KEY"
    return first_key[0] if first_key else "$KEY"


def key_hint(key: str | None, keys: KeyTable, config: Path | None) -> str | None:
    """Where a person finds a key, for the banner; None where none is needed or the environment has it."""
    if key != "$KEY":
        return None if key is None or key.startswith("$") else key
    names = sorted(keys.tenants())
    tenant = names[0] if len(names) == 1 else FIRST_TENANT if FIRST_TENANT in names else "NAME"
    command = f"`k3-gateway keys create --tenant {tenant}{f' --config {config}' if config else ''}` makes"
    if not keys.num_keys:
        return f"there is none yet; {command} one"
    return (
        f"the one that the first start printed; {command} another"
        if FIRST_TENANT in names
        else f"one of yours; {command} another"
    )


def banner(base_url: str, model: str, key: str | None, hint: str | None, seconds: float) -> str:
    """What a person needs to send a first request."""
    lines = [f"ready after {seconds:.1f} s", "", f"  base URL  {base_url}/v1", f"  model     {model}"]
    if hint is not None:
        lines.append(f"  API key   {hint}")
    header = f' -H "Authorization: Bearer {key}"' if key else ""
    body = f'{{"model":"{model}","messages":[{{"role":"user","content":"What is the capital of France?"}}]}}'
    lines += ["", f'  curl {base_url}/v1/chat/completions{header} -H "Content-Type: application/json" \\', f"    -d '{body}'", ""]
    return "\n".join(lines)
