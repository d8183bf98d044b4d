"""What of an error may stand in the log.

Role: for the lines of requests and of their traces. Messages to clients repeat what they sent, and an exception's own text
may: prompts are in both.
Invariant: nothing between quotes of any kind is kept, whatever stands in it, but the path of a field that an API has.
"""

from __future__ import annotations

import re
import traceback
from typing import Final

from server.protocol import chat, messages

MAX_CHARS: Final = 500
_NAMES: Final = frozenset().union(
    {"schema", "json_schema", "parameters", "strict", "description"},
    chat.FIELDS,
    *(
        kind.__annotations__
        for kind in (
            chat.StreamOptions, chat.Thinking, messages.Message, messages.ContentPart, messages.ImageUrl, messages.ToolCall,
            messages.FunctionCall,
        )
    ),
)  # fmt: skip
_PATH: Final = re.compile(r"`([a-z_]+(?:\[\d+\])?(?:\.[a-z_]+(?:\[\d+\])?)*)`")
_NAME: Final = re.compile(r"[a-z_]+")
_OPENING: Final = re.compile(r"[`\"“]|(?<!\w)'")
_QUOTES: Final = "`\"“”'"


def without_values(text: str) -> str:
    """`text` with one `…` for all from the first quote to the last: a value may have quotes of its own."""
    text, field = text[:MAX_CHARS], ""
    if (path := _PATH.match(text)) and _NAMES.issuperset(_NAME.findall(path[1])):
        field, text = path[0], text[path.end() :]
    opening = _OPENING.search(text)
    if opening is None:
        return field + text
    closing = max(text.rfind(quote) for quote in _QUOTES)
    return field + text[: opening.start()] + "…" + (text[closing + 1 :] if closing > opening.start() else "")


def cause_text(error: BaseException) -> str:
    """Where `error` came from, and what it came from in turn: as a traceback, but for the values in its messages."""
    lines: list[str] = []
    seen: set[int] = set()
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    for link in reversed(chain):
        lines += [part.rstrip("\n") for part in traceback.format_tb(link.__traceback__)]
        lines.append(f"{type(link).__module__}.{type(link).__qualname__}: {without_values(str(link))}")
        if isinstance(link, BaseExceptionGroup):
            lines += [cause_text(part) for part in link.exceptions]
    return "\n".join(lines)
