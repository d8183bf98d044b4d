"""What tells the shapes of answers apart.

Role: the key under which a grammar is kept. Agents send the same tools with every request: finding the key is most of what a
known grammar costs.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

import msgspec

from server.grammar.base import Shape

LARGE_BYTES: Final = 256 * 1024
_NODE_BYTES: Final = 128
"""What each value counts at least, so that a look ends after some 2,000 of them and takes less than half a millisecond."""


def key_of(shape: Shape) -> bytes | None:
    """The same for equal shapes only, None for one that is nested too deep to be written."""
    content = [
        *(shape.thinking, shape.tool_choice, shape.named, shape.parallel, shape.strict_only, shape.after_calls),
        *(shape.response_format, shape.tool_paths, *shape.tools),
    ]
    digest = hashlib.sha256()
    try:
        for part in content:  # one at a time: other threads get their turn between them
            digest.update(_written(part) + b"\n")
    except RecursionError:
        return None
    return digest.digest()


def is_large(shape: Shape) -> bool:
    """Whether finding the key takes long enough to be left to a thread, as far as a short look tells."""
    left = LARGE_BYTES
    queue: list[Any] = [shape.response_format, *shape.tools]
    while queue and left > 0:
        value = queue.pop()
        left -= _NODE_BYTES
        if isinstance(value, str):
            left -= len(value)
        elif isinstance(value, dict):
            if len(value) * _NODE_BYTES > left:
                return True
            left -= sum(map(len, value))
            queue += value.values()
        elif isinstance(value, list):
            if len(value) * _NODE_BYTES > left:
                return True
            queue += value
    return left <= 0


def _written(part: Any) -> bytes:
    try:
        return msgspec.json.encode(part)
    except UnicodeEncodeError:  # lone surrogates
        return json.dumps(part).encode()
