"""What a browser gets of the page: a few files of the package, read once.

Invariant: nothing outside the list can be asked for, and no file has anything of a tenant or a request in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
"""With the page, its files and its figures: a browser runs nothing but these files, and asks nobody else for anything."""


@dataclass(slots=True, frozen=True)
class File:
    """A file as it is sent. `etag`: changes with its content."""

    content: bytes
    media_type: str
    etag: str


def load_files() -> dict[str, File]:
    """Name -> file."""
    found = {}
    for path in (files("server.dashboard") / "static").iterdir():
        ending = path.name.rpartition(".")[2]
        if ending in _TYPES:
            content = path.read_bytes()
            found[path.name] = File(content, _TYPES[ending], f'"{hashlib.sha256(content).hexdigest()[:32]}"')
    return found
