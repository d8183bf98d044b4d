"""Printing a grammar in the notation of the engine's grammar compiler (xgrammar's EBNF).

Role: step from nodes to text. How something is written decides what a mask costs, by three orders of magnitude: see the comments.
Must not: import the compiler; the notation is all that is shared.
Source: xgrammar's description of its EBNF, and measurements with release 0.2.8.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from server.grammar import characters
from server.grammar.characters import CharSet, charset
from server.grammar.markup import Markup
from server.grammar.nodes import Choice, Control, FreeText, Literal, Node, Reference, Repeat, Sequence, Word, walk
from server.grammar.tokens import TokenRules

QUOTED_PLAIN: Final = characters.minus(charset((0x20, 0x10FFFF)), characters.of('"\\'))
"""Characters that stand for themselves in a JSON string."""

_SHORT_ESCAPES: Final = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
QUOTED: Final = characters.union(QUOTED_PLAIN, characters.of("".join(_SHORT_ESCAPES)))
"""Characters that a JSON string is made of here: the other control characters are left out."""

_HEX: Final = "[0-9A-Fa-f]"
_UNICODE_ESCAPES: Final = (
    f'"\\\\u" [0-9A-CEFa-cef] {_HEX} {_HEX} {_HEX}',
    f'"\\\\u" [Dd] [0-7] {_HEX} {_HEX}',
    f'"\\\\u" [Dd] [89ABab] {_HEX} {_HEX} "\\\\u" [Dd] [C-Fc-f] {_HEX} {_HEX}',
)
_MAX_INLINED: Final = 10
_LOOK_AHEAD: Final = " (=[,:}\\]])"


class Printer:
    """Prints one grammar."""

    def __init__(self, markup: Markup, excluded: str) -> None:
        """`excluded`: ids that free text must not have, as `1, 2, 3`."""
        self._guard = guard = markup.guard
        self._excluded = excluded
        controls = [markup.close.token_id, markup.sep.token_id, markup.open.token_id]
        firsts = [guard.token_of(first) for first in _letters(guard.firsts)]
        usual = [frozenset(firsts), *(frozenset([token_id]) for token_id in controls)]
        self._tokens = TokenRules(usual, firsts)
        self._lines: list[str] = []
        self._words: dict[Word, str] = {}
        self._texts: dict[FreeText, str] = {}
        self._inlined: dict[str, Node] = {}
        self._apart: list[str] = []
        self._level = 0

    def print(self, root: Node, rules: Mapping[str, Node]) -> str:
        """The grammar of `root`; all `rules` that it refers to must be there."""
        references: Counter[str] = Counter()
        queue = [root]
        while queue:
            for node in walk(queue.pop()):
                if isinstance(node, Reference):
                    references[node.name] += 1
                    if references[node.name] == 1:
                        queue.append(rules[node.name])
        # The compiler takes time with the square of the number of rules: what is used once stands where it is used.
        self._inlined = {name: rules[name] for name, count in references.items() if count == 1}
        self._apart = [name for name in references if name not in self._inlined]
        last = f"root ::= {self._node(root)}\n"
        for name in self._apart:  # it grows on the way
            self._lines.append(f"{name} ::= {self._node(rules[name])}")
        return "\n".join([*self._tokens.lines(), *self._lines, last])

    def _node(self, node: Node) -> str:
        match node:
            case Literal(text, syntax):
                return self._literal(text, syntax) if text else '""'
            case Control(token_id):
                return self._tokens.name(token_id)
            case Reference(name):
                return self._reference(name)
            case FreeText():
                return self._free_text(node)
            case Word():
                return self._word(node)
            case Sequence(parts):
                return (
                    " ".join(f"({self._node(part)})" if isinstance(part, Choice) else self._node(part) for part in parts) or '""'
                )
            case Choice(options):
                return " | ".join(self._node(option) for option in options)
            case Repeat(inner, low, high):
                times = "*" if (low, high) == (0, None) else f"{{{low},{'' if high is None else high}}}"
                return f"({self._node(inner)}){times}"

    def _reference(self, name: str) -> str:
        if name not in self._inlined:
            return name
        if self._level == _MAX_INLINED:
            self._apart.append(name)
            return name
        self._level += 1
        text = self._node(self._inlined[name])
        self._level -= 1
        return f"({text})"

    def _literal(self, text: str, syntax: bool) -> str:
        parts = self._guard.parts(text, syntax=syntax)
        return " ".join(quoted(part) if isinstance(part, str) else self._tokens.name(part) for part in parts)

    def _free_text(self, node: FreeText) -> str:
        # Edges over whole tokens are all but free: no text is looked at.
        if node in self._texts:
            return self._texts[node]
        if not self._texts:
            self._lines.append(f"piece ::= ExcludeToken({self._excluded})")
        name = self._texts[node] = f"text{len(self._texts)}"
        if node.low:
            self._lines.append(f"{name} ::= {'piece ' * node.low}{self._free_text(FreeText(0, self._rest(node)))}")
        else:
            bound = "" if node.high is None else f"[max_tokens={node.high}]"
            self._lines.append(f'{name}{bound} ::= "" | (piece {name})')
        return name

    def _rest(self, node: FreeText) -> int | None:
        return None if node.high is None else max(0, node.high - node.low)

    # Words

    def _word(self, word: Word) -> str:
        if word not in self._words:
            name = self._words[word] = f"w{len(self._words)}"
            self._states(word, name)
        return self._words[word]

    def _states(self, word: Word, name: str) -> None:
        """One rule a state, and the ending in them.

        So the compiler knows all that may come at each state, and computes its mask once, for all grammars that have the same
        rules. A rule may refer to itself and to later ones; circles over several rules are not shared between grammars. Nor is
        anything of a grammar that bounds characters by the compiler's own `max_chars`, which is why lengths are states.
        """
        look_ahead = _LOOK_AHEAD if word.inside and word.quoted else ""
        for state, edges in enumerate(word.automaton.edges):
            options = [self._ending(word)] if word.automaton.accepting[state] else []
            for chars, target in edges:
                texts = self._characters(word, chars, loop=target == state)
                options += [f"{text} {_state_name(name, target)}" for text in texts]
                if target == state:
                    options += self._beginnings(word, name, chars, edges)
            body = " | ".join(options)
            self._lines.append(f"{_state_name(name, state)} ::= {f'({body}){look_ahead}' if look_ahead else body}")

    def _characters(self, word: Word, chars: CharSet, *, loop: bool) -> list[str]:
        """Ways to write one of `chars`; the rare ones only in a `loop`, as they make each state's mask dearer."""
        plain = characters.intersection(chars, QUOTED_PLAIN) if word.quoted else chars
        firsts = _letters(characters.intersection(plain, self._guard.firsts))
        texts: list[str] = []
        if rest := characters.minus(plain, self._guard.firsts):
            texts.append(_class(rest))
        if word.quoted:
            if short := "".join(letter for character, letter in _SHORT_ESCAPES.items() if characters.contains(chars, character)):
                texts.append(f'"\\\\" {_class(characters.of(short))}')
            if loop and not characters.minus(QUOTED, chars):
                texts += _UNICODE_ESCAPES
        if firsts:
            texts.append(self._tokens.name(*(self._guard.token_of(first) for first in firsts)))
        return texts

    def _beginnings(self, word: Word, name: str, chars: CharSet, edges: tuple[tuple[CharSet, int], ...]) -> list[str]:
        """In a loop, a character that a control token's name begins with may also come with the next one in the same token."""
        texts: list[str] = []
        plain = QUOTED_PLAIN if word.quoted else characters.ANY
        for first in _letters(characters.intersection(characters.intersection(chars, plain), self._guard.firsts)):
            safe = characters.intersection(plain, self._guard.safe_after(first))
            for edge, target in edges:
                if follow := characters.intersection(edge, safe):
                    texts.append(f"{quoted(first)} {_class(follow)} {_state_name(name, target)}")
        return texts

    def _ending(self, word: Word) -> str:
        return '""' if word.ending is None else self._node(word.ending)


def _state_name(word: str, state: int) -> str:
    return f"{word}_{state}" if state else word


def quoted(text: str) -> str:
    """A literal of the notation."""
    return '"' + "".join(_literal_character(ord(character)) for character in text) + '"'


def _class(chars: CharSet) -> str:
    """A character class of the notation."""
    return "[" + "".join(_class_range(low, high) for low, high in chars) + "]"


def _class_range(low: int, high: int) -> str:
    first, last = _class_character(low), _class_character(high)
    return first if low == high else first + last if high == low + 1 else f"{first}-{last}"


def _class_character(code: int) -> str:
    character = chr(code)
    return character if character.isascii() and character.isalnum() else _code(code)


def _literal_character(code: int) -> str:
    character = chr(code)
    if character in '"\\':
        return "\\" + character
    return character if 0x20 <= code < 0x7F else _code(code)


def _code(code: int) -> str:
    # Not `\x`, which reads as many digits as follow.
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _letters(chars: CharSet) -> list[str]:
    return [chr(code) for low, high in chars for code in range(low, high + 1)]


def escaped(text: str) -> str:
    """`text` of `QUOTED` characters as it stands in a JSON string."""
    return "".join(f"\\{_SHORT_ESCAPES[character]}" if character in _SHORT_ESCAPES else character for character in text)
