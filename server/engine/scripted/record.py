"""What the scripted engine was asked, for `GET /debug/engine`.

Invariant: bounded in entries and in token ids, the newest stay; neither prompts nor pixels are kept alive by it.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import asdict, dataclass, replace
from typing import Any

from server.engine.base import EngineRequest
from server.images import PlacedImage

MAX_ENTRIES = 1000
MAX_TOKENS = 8_000_000


@dataclass(slots=True)
class Entry:
    """One request as it arrived, and what became of it.

    `token_ids`, shape (num_prompt_tokens,); `facts`: the rest of the request as JSON types. `rule`: index of the rule that
    answers it, None for the fixed reply. `end`: the finish reason, or `closed`, `error`, `dead`, `invalid`; None while it runs.
    """

    token_ids: array[int]
    facts: dict[str, Any]
    rule: int | None = None
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    end: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The entry as JSON types."""
        return {
            **self.facts,
            "token_ids": self.token_ids.tolist(),
            "rule": self.rule,
            "num_cached_tokens": self.num_cached_tokens,
            "num_generated_tokens": self.num_generated_tokens,
            "end": self.end,
        }


class Record:
    """The last requests and aborts. An abort is a call of `abort`, or a generator closed before its end."""

    def __init__(self, max_entries: int = MAX_ENTRIES, max_tokens: int = MAX_TOKENS) -> None:
        self._max_entries = max_entries
        self._max_tokens = max_tokens
        self._entries: deque[Entry] = deque()
        self._aborts: deque[dict[str, Any]] = deque(maxlen=max_entries)
        self._num_tokens = 0

    def add(self, request: EngineRequest) -> Entry:
        """Note a request."""
        entry = Entry(array("q", request.token_ids), _facts(request))
        self._entries.append(entry)
        self._num_tokens += len(entry.token_ids)
        while len(self._entries) > self._max_entries or (self._num_tokens > self._max_tokens and len(self._entries) > 1):
            self._num_tokens -= len(self._entries.popleft().token_ids)
        return entry

    def add_abort(self, request_id: str, cause: str, *, known: bool) -> None:
        """Note an abort. `cause`: `abort` or `closed`; `known`: whether such a request was running."""
        self._aborts.append({"request_id": request_id, "cause": cause, "known": known})

    def as_json(self) -> dict[str, Any]:
        """Everything, oldest first, as JSON types."""
        return {"requests": [entry.as_json() for entry in self._entries], "aborts": list(self._aborts)}


def _facts(request: EngineRequest) -> dict[str, Any]:
    hints = asdict(replace(request.hints, example=None))
    del hints["example"]  # code, and it would keep the request alive
    sampling = {**asdict(request.sampling), "stop_token_ids": list(request.sampling.stop_token_ids)}
    if request.sampling.logit_bias is not None:
        sampling["logit_bias"] = {str(token_id): bias for token_id, bias in request.sampling.logit_bias.items()}
    return {
        "request_id": request.request_id,
        "cache_salt": request.cache_salt,
        "priority": request.priority,
        "grammar": request.grammar,
        "reasoning_ended": request.reasoning_ended,
        "media": [_media(placed) for placed in request.media],
        "trace_headers": dict(request.trace_headers or {}),
        "sampling": sampling,
        "hints": hints,
    }


def _media(placed: PlacedImage) -> dict[str, Any]:
    image = placed.image
    facts = {"content_hash": image.content_hash, "width": image.width, "height": image.height}
    return {**facts, "start": placed.start, "num_tokens": placed.num_tokens}
