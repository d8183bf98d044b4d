"""Random answers of a grammar, without an engine."""

from __future__ import annotations

import random
from collections.abc import Mapping

from server.grammar import characters
from server.grammar.answer import Answer
from server.grammar.ebnf import QUOTED_PLAIN
from server.grammar.nodes import Choice, Control, FreeText, Literal, Node, Reference, Repeat, Sequence, Word
from tests.grammar.conftest import Speaker

SAMPLES = 'abzAZ019 _-./:,;@"\\\n\t<[]{}|oEéß日🙂'
SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
FREE_TEXTS = (
    "",
    "a",
    "Paris is nice. ",
    "<|close|>",
    '<|close|>argument<|sep|> "x" & [EOS] <b>',
    "日本語 🙂\n\ttabs",
    "<",
    "[",
    "]}",
)


class Derivation:
    """Random answers of one grammar."""

    def __init__(self, speaker: Speaker, found: Answer, rng: random.Random, budget: int = 400) -> None:
        self._speaker = speaker
        self._rules: Mapping[str, Node] = found.rules
        self._root = found.root
        self._lengths = found.lengths
        self._rng = rng
        self._budget = budget
        self._parts: list[str | int] = []

    def token_ids(self) -> list[int]:
        """One answer, end token included, tokenised as text would be."""
        self._parts, left = [], self._budget
        self._budget = left
        queue = [self._root]
        while queue:
            self._budget -= 1
            self._expand(queue.pop(), queue)
        self._budget = left
        token_ids: list[int] = []
        text = ""
        for part in [*self._parts, self._speaker.markup.end]:
            if isinstance(part, str):
                text += part
            else:
                token_ids += [*self._speaker.vocabulary.encode(text), part]
                text = ""
        return token_ids

    def _expand(self, node: Node, queue: list[Node]) -> None:
        rng = self._rng
        match node:
            case Literal(text, syntax):
                self._parts += self._speaker.markup.guard.parts(text, syntax=syntax)
            case Control(token_id):
                self._parts.append(token_id)
            case FreeText(low, high):
                tokens = self._speaker.vocabulary.encode("".join(rng.choices(FREE_TEXTS, k=rng.randrange(3))) or "ab" * low)
                tokens = tokens[: high if high is not None else None]
                self._parts += tokens
            case Word():
                self._word(node)
                if node.ending is not None:
                    queue.append(node.ending)
            case Sequence(parts):
                queue += reversed(parts)
            case Choice(options):
                queue.append(rng.choice(options) if self._budget > 0 else min(options, key=self._lengths.of))
            case Repeat(inner, low, high):
                most = low if self._budget < 0 else min(low + rng.randrange(4), high if high is not None else low + 3)
                queue += [inner] * max(low, most)
            case Reference(name):
                queue.append(self._rules[name])

    def _word(self, word: Word) -> None:
        """A random walk, with the first characters of control tokens by their ids, or in loops sometimes not."""
        rng, guard, edges = self._rng, self._speaker.markup.guard, word.automaton.edges
        state = length = 0
        natural = ""  # a first character that was written as itself, so that not everything may follow
        wish = rng.choice((0, 2, 6, 20))
        homeward = _distances(word)
        while not (word.automaton.accepting[state] and not natural and (length >= wish or not edges[state])):
            choices = (
                edges[state]
                if length < wish or natural
                else [edge for edge in edges[state] if homeward[edge[1]] < homeward[state]]
            )
            chars, target = rng.choice(choices)
            if natural:
                safe = guard.safe_after(natural)
                choices = [
                    (kept, t)
                    for c, t in edges[state]
                    if (kept := characters.intersection(c, characters.intersection(safe, QUOTED_PLAIN)))
                ]
                chars, target = rng.choice(choices)
            character = self._sample(chars)
            natural = self._character(word, character, chars, loop=target == state, may=not natural)
            state = target
            length += 1

    def _character(self, word: Word, character: str, chars: characters.CharSet, *, loop: bool, may: bool) -> str:
        guard, rng = self._speaker.markup.guard, self._rng
        if (
            word.quoted
            and loop
            and chars
            and not characters.minus(QUOTED_PLAIN, chars)
            and rng.random() < 0.1
            and ord(character) < 0x10000
        ):
            self._parts.append(f"\\u{ord(character):04x}")
            return ""
        if word.quoted and character in SHORT_ESCAPES:
            self._parts.append(SHORT_ESCAPES[character])
            return ""
        if characters.contains(guard.firsts, character):
            if loop and may and rng.random() < 0.5:
                self._parts.append(character)
                return character
            self._parts.append(guard.token_of(character))
            return ""
        self._parts.append(character)
        return ""

    def _sample(self, chars: characters.CharSet) -> str:
        liked = [character for character in SAMPLES if characters.contains(chars, character)]
        if liked and self._rng.random() < 0.9:
            return self._rng.choice(liked)
        low, high = self._rng.choice(chars)
        return chr(self._rng.randint(low, high))


def _distances(word: Word) -> list[int]:
    """State -> number of characters to the nearest end."""
    automaton = word.automaton
    far = len(automaton.edges) + 1
    found = [0 if accepts else far for accepts in automaton.accepting]
    changed = True
    while changed:
        changed = False
        for state, edges in enumerate(automaton.edges):
            nearest = min((found[target] + 1 for _, target in edges), default=far)
            if nearest < found[state]:
                found[state] = nearest
                changed = True
    return found
