"""JSON as it is being written: an automaton that passes on only what can still become valid JSON.

Role: arguments that are objects or arrays are streamed while the model writes them; what has been sent can't be taken back.
Invariant: all that `feed` returned is a prefix of valid JSON; with what `close` returns it is one JSON value, or nothing at all.
To keep that without buffering, what commits to nothing (blanks, punctuation, opening brackets, unfinished words and escapes) is
held back until the next thing that does. Depth and words are bounded, work is linear.

How faults are read (`faulty` says that there was one): in strings, raw control characters and unknown escapes are escaped, lone
surrogates become U+FFFD; words that JSON doesn't have become strings, Python's `True False None` the literals; a comma before a
closing bracket is dropped. At any other fault all that is open is closed and the rest is dropped (`broken`). Keys are not
compared: a repeated key stays repeated.
"""

from __future__ import annotations

import re
from typing import Final

MAX_DEPTH: Final = 128
MAX_WORD_LENGTH: Final = 1024
_MAX_BLANKS: Final = 1024

_VALUE, _FIRST_VALUE, _NEXT_VALUE, _FIRST_KEY, _NEXT_KEY, _COLON, _AFTER, _WORD, _STRING, _ESCAPE, _DONE, _BROKEN = range(12)
_BLANK: Final = " \t\n\r"
_PLAIN_RUN: Final = re.compile(r'[^"\\\x00-\x1f]+')
_WORD_RUN: Final = re.compile(r"[-+.0-9A-Za-z_]+")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_WORDS: Final = frozenset({"true", "false", "null"})
_PYTHON_WORDS: Final = {"True": "true", "False": "false", "None": "null"}
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_ESCAPES: Final = {code: f"\\u{code:04x}" for code in range(32)} | {
    ord('"'): '\\"', ord("\\"): "\\\\", 8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r",
}  # fmt: skip
_NEEDS_ESCAPE: Final = re.compile(r'["\\\x00-\x1f]')
_REPLACEMENT: Final = "\\ufffd"


def escape(text: str) -> str:
    """`text` as it stands between the quotes of a JSON string, non-ASCII characters kept."""
    return text.translate(_ESCAPES) if _NEEDS_ESCAPE.search(text) else text


class JsonStream:
    """One value."""

    __slots__ = ("_ahead", "_escape", "_high", "_is_key", "_num_open", "_out", "_owes_value", "_stack", "_state", "_word",
                 "faulty", "written")  # fmt: skip

    def __init__(self) -> None:
        self._state = _VALUE
        self._stack: list[str] = []  # the closing bracket of each bracket read
        self._num_open = 0  # how many of these are written
        self._ahead = ""  # blanks, punctuation and opening brackets read but not written
        self._word = ""
        self._escape = ""  # an unfinished escape sequence
        self._high = ""  # a high surrogate's escape that waits for the low one
        self._is_key = False  # of the string being read
        self._owes_value = False  # a key is written, its value is not
        self._out: list[str] = []
        self.faulty = False
        self.written = False

    @property
    def whole(self) -> bool:
        """Whether the value is complete."""
        return self._state == _DONE

    @property
    def broken(self) -> bool:
        """Whether the rest is dropped."""
        return self._state == _BROKEN

    def feed(self, text: str) -> str:
        """What can be sent after `text`."""
        position = 0
        while position < len(text) and self._state != _BROKEN:
            if self._state == _STRING:
                position = self._in_string(text, position)
            elif self._state == _ESCAPE:
                position = self._in_escape(text, position)
            elif self._state == _WORD:
                position = self._in_word(text, position)
            else:
                position = self._between(text, position)
        return self._taken()

    def close(self) -> str:
        """What is missing to a whole value, if anything was sent; the end of the text is the end of the value."""
        if self._state == _WORD:
            self._end_word()
        if self._state not in (_DONE, _BROKEN):
            self._break()
        return self._taken()

    def _taken(self) -> str:
        out = "".join(self._out)
        self._out.clear()
        return out

    def _write(self, text: str) -> None:
        self._out.append(self._ahead + text)
        self._ahead = ""
        self._num_open = len(self._stack)
        self.written = True

    def _between(self, text: str, position: int) -> int:
        """One character of structure."""
        character, state = text[position], self._state
        if character in _BLANK:
            if self._stack and len(self._ahead) < _MAX_BLANKS:
                self._ahead += character
        elif character == "," and state == _AFTER:
            self._ahead += character
            self._state = _NEXT_KEY if self._stack[-1] == "}" else _NEXT_VALUE
        elif character == ":" and state == _COLON:
            self._ahead += character
            self._state = _VALUE
        elif character in "]}" and state in (_AFTER, _FIRST_VALUE, _NEXT_VALUE, _FIRST_KEY, _NEXT_KEY):
            self._close_bracket(character)
        elif character == '"' and state in (_FIRST_KEY, _NEXT_KEY):
            self._begin_string(is_key=True)
        elif state in (_VALUE, _FIRST_VALUE, _NEXT_VALUE):
            return self._begin_value(text, position)
        else:
            self._break()
        return position + 1

    def _begin_value(self, text: str, position: int) -> int:
        character = text[position]
        if character == '"':
            self._begin_string(is_key=False)
        elif character in "{[" and len(self._stack) < MAX_DEPTH:
            self._stack.append("}" if character == "{" else "]")
            self._ahead += character
            self._state = _FIRST_KEY if character == "{" else _FIRST_VALUE
        elif _WORD_RUN.match(character):
            self._state = _WORD
            return position
        else:
            self._break()
        return position + 1

    def _close_bracket(self, bracket: str) -> None:
        if bracket != self._stack[-1]:
            self._break()
            return
        if self._state in (_NEXT_VALUE, _NEXT_KEY):
            self.faulty = True
            self._ahead = ""
        self._write(bracket)
        self._stack.pop()
        self._end_value()

    def _end_value(self) -> None:
        self._num_open = len(self._stack)
        self._owes_value = False
        self._state = _AFTER if self._stack else _DONE

    def _begin_string(self, *, is_key: bool) -> None:
        self._write('"')
        self._is_key = is_key
        self._owes_value = False
        self._state = _STRING

    def _in_string(self, text: str, position: int) -> int:
        run = _PLAIN_RUN.match(text, position)
        if run is not None:
            self._drop_lone_surrogate()
            self._out.append(run.group())
            return run.end()
        character = text[position]
        if character == "\\":
            self._escape = character
            self._state = _ESCAPE
            return position + 1
        self._drop_lone_surrogate()
        if character == '"':
            self._end_string()
        else:
            self.faulty = True
            self._out.append(escape(character))
        return position + 1

    def _end_string(self) -> None:
        self._out.append('"')
        if self._is_key:
            self._owes_value = True
            self._state = _COLON
        else:
            self._end_value()

    def _in_escape(self, text: str, position: int) -> int:
        """One character of an escape sequence; `_escape` is `\\`, or `\\u` with up to three digits."""
        character = text[position]
        if len(self._escape) == 1 and character in '"\\/bfnrt':
            self._drop_lone_surrogate()
            self._out.append(self._escape + character)
        elif (len(self._escape) == 1 and character == "u") or (len(self._escape) > 1 and character in _HEX):
            self._escape += character
            if len(self._escape) < 6:
                return position + 1
            self._end_unicode_escape()
        else:
            self._spell_escape()
            return position
        self._escape = ""
        self._state = _STRING
        return position + 1

    def _end_unicode_escape(self) -> None:
        unit = int(self._escape[2:], 16)
        if 0xDC00 <= unit <= 0xDFFF and self._high:
            self._out.append(self._high + self._escape)
            self._high = ""
            return
        self._drop_lone_surrogate()
        if 0xD800 <= unit <= 0xDBFF:
            self._high = self._escape
        elif 0xDC00 <= unit <= 0xDFFF:
            self.faulty = True
            self._out.append(_REPLACEMENT)
        else:
            self._out.append(self._escape)

    def _spell_escape(self) -> None:
        """The escape is none: its characters stand for themselves."""
        self.faulty = True
        self._drop_lone_surrogate()
        self._out.append("\\" + self._escape)
        self._escape = ""
        self._state = _STRING

    def _drop_lone_surrogate(self) -> None:
        if self._high:
            self.faulty = True
            self._out.append(_REPLACEMENT)
            self._high = ""

    def _in_word(self, text: str, position: int) -> int:
        run = _WORD_RUN.match(text, position)
        if run is None:
            self._end_word()
            return position
        self._word += run.group()
        if len(self._word) > MAX_WORD_LENGTH:
            self._break()
        return run.end()

    def _end_word(self) -> None:
        word, self._word = self._word, ""
        if word in _WORDS or _NUMBER.fullmatch(word):
            self._write(word)
        else:
            self.faulty = True
            self._write(_PYTHON_WORDS.get(word) or f'"{word}"')
        self._end_value()

    def _break(self) -> None:
        """Close all that is written and open; the rest is dropped."""
        self.faulty = True
        if self._state in (_STRING, _ESCAPE):
            self._drop_lone_surrogate()
            self._out.append('"')
            self._owes_value = self._is_key
        if self._owes_value:
            self._out.append(": null")
        self._out.extend(reversed(self._stack[: self._num_open]))
        self._state = _BROKEN
