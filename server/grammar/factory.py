"""Grammars by the shape of an answer.

Role: what the rest of the gateway calls. Grammars are made once for each content, as many requests declare the same tools;
refusals are remembered as well.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import structlog

from server.errors import InvalidRequestError
from server.grammar import answer
from server.grammar.base import Bounds, Grammar, Shape
from server.grammar.content import is_large, key_of
from server.grammar.derivation import Shortest
from server.grammar.ebnf import Printer
from server.grammar.library import Library
from server.grammar.markup import Markup
from server.grammar.turns import Turns
from server.vocabulary.base import Vocabulary

FORMATS: Final = ("kimi_k3", "plain")
MAX_CACHED: Final = 512
MAX_SHORTEST: Final = 20_000
"""Characters and tokens of a shortest answer that is written. Forty levels that each have the next one twice would be 2^40."""

MAX_CACHED_BYTES: Final = 64 * 1024 * 1024

log = structlog.get_logger(__name__)

Outcome = Grammar | InvalidRequestError | None
"""What making a grammar came to: the error where no answer is possible."""


class GrammarFactory:
    """Makes the grammars of one format over one vocabulary, those that are asked for with `grammar` one at a time in a thread."""

    def __init__(self, format_name: str, vocabulary: Vocabulary, bounds: Bounds | None = None) -> None:
        """Raises `ValueError` for a format that is none of `FORMATS`, or a vocabulary that lacks its control tokens."""
        if format_name not in FORMATS:
            raise ValueError(f"`{format_name}` is not a format: use one of {', '.join(FORMATS)}")
        self._bounds = bounds or Bounds()
        self._vocabulary = vocabulary
        self._library = Library()
        self._markup = None if format_name == "plain" else Markup(vocabulary)
        nameless = (token_id for token_id, piece in enumerate(vocabulary.pieces) if not piece)
        self._excluded = ", ".join(map(str, sorted({*vocabulary.control_ids, *nameless})))
        self._cache: OrderedDict[bytes, Outcome] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()  # of the cache
        self._turns: Turns[Outcome] = Turns()
        self._key_thread = ThreadPoolExecutor(1, thread_name_prefix="grammar-key")

    async def grammar(self, shape: Shape, tenant: str = "") -> Grammar | None:
        """The grammar of `shape`, None where there is nothing to hold: plain text, or a format without a grammar.

        Takes milliseconds for usual tools the first time, and half a second of a core at most, which `tenant` waits for in turn
        with the others. Raises `InvalidRequestError` where no answer is possible.
        """
        if self._markup is None or not (shape.tools or shape.response_format):
            return None
        if is_large(shape):
            key = await asyncio.get_running_loop().run_in_executor(self._key_thread, key_of, shape)
        else:
            key = key_of(shape)
        is_known, outcome = self._cached(key)
        if not is_known:
            outcome = await self._turns.run(tenant, key, partial(self._make, shape, key, self._markup))
        return _given(outcome)

    def make(self, shape: Shape) -> Grammar | None:
        """As `grammar`, in the caller's thread, which must be the only one."""
        if self._markup is None or not (shape.tools or shape.response_format):
            return None
        key = key_of(shape)
        is_known, outcome = self._cached(key)
        return _given(outcome if is_known else self._make(shape, key, self._markup))

    def _cached(self, key: bytes | None) -> tuple[bool, Outcome]:
        """Whether the outcome is known, and the outcome."""
        with self._lock:
            if key is None or key not in self._cache:
                return False, None
            self._cache.move_to_end(key)
            return True, self._cache[key]

    def _make(self, shape: Shape, key: bytes | None, markup: Markup) -> Outcome:
        begin = time.perf_counter()
        outcome: Outcome
        try:
            outcome = self._made(shape, markup)
        except InvalidRequestError as error:
            outcome = InvalidRequestError(error.message, param=error.param)  # without the frames, which hold the request
        if isinstance(outcome, Grammar):
            _log_made(outcome, time.perf_counter() - begin)
        if key is not None:
            with self._lock:
                self._cache[key] = outcome
                self._num_bytes += _num_bytes(outcome)
                while len(self._cache) > MAX_CACHED or (self._num_bytes > MAX_CACHED_BYTES and len(self._cache) > 1):
                    self._num_bytes -= _num_bytes(self._cache.popitem(last=False)[1])
        return outcome

    def _made(self, shape: Shape, markup: Markup) -> Grammar | None:
        found = answer.compiled(shape, markup, self._bounds, self._library)
        if found is None:
            return None
        ebnf = Printer(markup, self._excluded).print(found.root, found.rules)
        tag = json.dumps({"type": "structural_tag", "format": {"type": "grammar", "grammar": ebnf}}, ensure_ascii=False)
        shortest: tuple[int, ...] = ()
        if found.lengths.of(found.root) <= MAX_SHORTEST:
            writer = Shortest(found.rules, found.lengths, self._vocabulary, markup.guard)
            shortest = (*writer.write(found.root), markup.end)
        return Grammar(tag, shortest, found.unenforced)


def _given(outcome: Outcome) -> Grammar | None:
    if isinstance(outcome, InvalidRequestError):
        raise InvalidRequestError(outcome.message, param=outcome.param)  # many may raise it, each with frames of its own
    return outcome


def _log_made(grammar: Grammar, seconds: float) -> None:
    log.debug(
        "grammar_made",
        milliseconds=round(seconds * 1000, 1),
        num_bytes=len(grammar.structural_tag),
        num_unenforced=len(grammar.unenforced),
    )


def _num_bytes(outcome: Outcome) -> int:
    """What it takes to keep."""
    if isinstance(outcome, Grammar):
        return len(outcome.structural_tag) + 8 * len(outcome.shortest) + sum(map(len, outcome.unenforced)) + 64
    return 64 if outcome is None else 64 + len(outcome.message) + len(outcome.param or "")
