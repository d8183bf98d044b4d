"""Grammars by the shape of an answer.

Role: what the rest of the gateway calls. Grammars are made once for each content: many requests declare the same tools.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from server.grammar import answer
from server.grammar.base import Bounds, Grammar, Shape
from server.grammar.derivation import Shortest
from server.grammar.ebnf import Printer
from server.grammar.library import Library
from server.grammar.markup import Markup
from server.vocabulary.base import Vocabulary

FORMATS: Final = ("kimi_k3", "plain")
MAX_CACHED: Final = 512
MAX_SHORTEST: Final = 20_000
"""Characters and tokens of a shortest answer that is written. Forty levels that each have the next one twice would be 2^40."""

MAX_CACHED_BYTES: Final = 64 * 1024 * 1024


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
        self._cache: OrderedDict[bytes, Grammar | None] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()  # of the cache
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")

    async def grammar(self, shape: Shape) -> Grammar | None:
        """The grammar of `shape`, None where there is nothing to hold: plain text, or a format without a grammar.

        Takes milliseconds for usual tools the first time, and bounded time for any. Raises `InvalidRequestError` where no
        answer is possible.
        """
        if self._markup is None or not (shape.tools or shape.response_format):
            return None
        key = _key(shape)
        with self._lock:
            if key is not None and key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._make, shape, key, self._markup)

    def make(self, shape: Shape) -> Grammar | None:
        """As `grammar`, in the caller's thread, which must be the only one."""
        if self._markup is None or not (shape.tools or shape.response_format):
            return None
        return self._make(shape, _key(shape), self._markup)

    def _make(self, shape: Shape, key: bytes | None, markup: Markup) -> Grammar | None:
        if key is None:
            return self._made(shape, markup)
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        grammar = self._made(shape, markup)
        with self._lock:
            self._cache[key] = grammar
            self._num_bytes += _num_bytes(grammar)
            while len(self._cache) > MAX_CACHED or (self._num_bytes > MAX_CACHED_BYTES and len(self._cache) > 1):
                self._num_bytes -= _num_bytes(self._cache.popitem(last=False)[1])
        return grammar

    def _made(self, shape: Shape, markup: Markup) -> Grammar | None:
        found = answer.compiled(shape, markup, self._bounds, self._library)
        if found is None:
            return None
        ebnf = Printer(markup.guard, self._excluded).print(found.root, found.rules)
        tag = json.dumps({"type": "structural_tag", "format": {"type": "grammar", "grammar": ebnf}}, ensure_ascii=False)
        shortest: tuple[int, ...] = ()
        if found.lengths.of(found.root) <= MAX_SHORTEST:
            writer = Shortest(found.rules, found.lengths, self._vocabulary, markup.guard)
            shortest = (*writer.write(found.root), markup.end)
        return Grammar(tag, shortest, found.unenforced)


def _key(shape: Shape) -> bytes | None:
    """What tells shapes apart, None for one that is nested too deep to be written."""
    content = [
        *(shape.thinking, shape.tool_choice, shape.named, shape.parallel, shape.strict_only, shape.after_calls),
        *(list(shape.tools), shape.response_format, shape.tool_paths),
    ]
    try:
        return hashlib.sha256(json.dumps(content).encode()).digest()
    except RecursionError:
        return None


def _num_bytes(grammar: Grammar | None) -> int:
    return 0 if grammar is None else len(grammar.structural_tag) + 8 * len(grammar.shortest) + 64
