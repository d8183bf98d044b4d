"""What the scripted engine was asked, for `GET /debug/engine`.

Invariant: bounded in entries and in token ids; the newest stay.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

from server.engine.base import EngineRequest

MAX_ENTRIES = 1000
MAX_TOKENS = 8_000_000


@dataclass(slots=True)
class Entry:
    """One request as it arrived, and what became of it.

    `rule`: index of the rule that answers it, None for the fixed reply. `end`: the finish reason, or `closed`, `error`, `dead`,
    `invalid`; None while it runs.
    """

    request: EngineRequest
    token_ids: array[int]
    rule: int | None = None
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    end: str | None = None


@dataclass(slots=True)
class Record:
    """The last requests and aborts. An abort is a call of `abort` or a generator closed before its end."""

    entries: deque[Entry] = field(default_factory=deque)
    aborts: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MAX_ENTRIES))
    num_tokens: int = 0

    def add(self, request: EngineRequest) -> Entry:
        """Note a request."""
        entry = Entry(request, array("q", request.token_ids))
        self.entries.append(entry)
        self.num_tokens += len(entry.token_ids)
        while len(self.entries) > MAX_ENTRIES or (self.num_tokens > MAX_TOKENS and len(self.entries) > 1):
            self.num_tokens -= len(self.entries.popleft().token_ids)
        return entry

    def add_abort(self, request_id: str, cause: str, *, known: bool) -> None:
        """Note an abort. `cause`: `abort` or `closed`; `known`: whether such a request was running."""
        self.aborts.append({"request_id": request_id, "cause": cause, "known": known})

    def as_json(self) -> dict[str, Any]:
        """Everything, oldest first, as JSON types."""
        return {"requests": [_entry_as_json(entry) for entry in self.entries], "aborts": list(self.aborts)}


def _entry_as_json(entry: Entry) -> dict[str, Any]:
    request = entry.request
    sampling = asdict(request.sampling)
    if request.sampling.logit_bias is not None:
        sampling["logit_bias"] = {str(token_id): bias for token_id, bias in request.sampling.logit_bias.items()}
    return {
        "request_id": request.request_id,
        "token_ids": entry.token_ids.tolist(),
        "cache_salt": request.cache_salt,
        "priority": request.priority,
        "grammar": request.grammar,
        "reasoning_ended": request.reasoning_ended,
        "media": [{"content_hash": m.content_hash, "width": m.width, "height": m.height} for m in request.media],
        "sampling": {**sampling, "stop_token_ids": list(request.sampling.stop_token_ids)},
        "hints": asdict(request.hints),
        "rule": entry.rule,
        "num_cached_tokens": entry.num_cached_tokens,
        "num_generated_tokens": entry.num_generated_tokens,
        "end": entry.end,
    }
