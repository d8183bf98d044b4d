"""Reading scripts.

Role: from the file that `--script` names to rules.
Invariant: a script is read whole before anything is served, and every mistake in it is reported at once, each with its place.
Must not: know how answers are paced or delivered (`engine.py`).

Text is literal: it becomes ordinary tokens, also where it spells a marker, and the author opens and closes K3's channels. The
answer to a prompt that ends in the think channel is written as

    reply:
      - text: "Let me think."
      - control: ["</think>", "<response>"]
      - text: "Hello!"
      - control: ["</response>", "</message>"]
      - stop
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from server.engine.scripted.markup import MARKERS, Markup, json_kind
from server.engine.scripted.mistakes import ABSENT, Mistakes, shown
from server.engine.scripted.reply import Repeat, Step, Tokens, Wait, Word
from server.engine.scripted.rules import DraftFigures, Rule, Script, When
from server.vocabulary.base import Vocabulary

_RULE_KEYS = ("when", "tokens_per_step", "step_interval_ms", "reply", "cached_tokens", "spec")
_WHEN_TEXTS = ("contains", "regex", "tenant", "model", "last_role", "last_contains")
_WHEN_KEYS = (*_WHEN_TEXTS, "after_tools")
_ROLES = ("user", "assistant", "tool", "system", "developer")
_ENDINGS = tuple(word.value for word in Word)
_ELEMENT_KEYS = {"call": ("tool", "index"), "argument": ("key", "type", "value")}
_STEP_KEYS = ("text", "control", "ids", "wait_ms", "repeat", "call", "argument")


class ScriptError(ValueError):
    """A script that cannot be used. `mistakes` has one line for each, with its place as in `rules[2].reply[0].text`."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("the script has mistakes:\n" + "\n".join(f"  {mistake}" for mistake in mistakes))
        self.mistakes = mistakes


def read_script(path: Path, vocabulary: Vocabulary) -> Script:
    """The script in file `path`, YAML or JSON. Raises `ScriptError`, and `OSError` where there is no such file."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ScriptError([f"`{path}` is not UTF-8: {error}"]) from error
    try:
        data = json.loads(text)
    except ValueError:
        try:
            data = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ScriptError([f"`{path}` is neither JSON nor YAML: {error}"]) from error
    return parse_script(data, vocabulary)


def parse_script(data: Any, vocabulary: Vocabulary) -> Script:
    """The script that `data`, decoded YAML or JSON, describes. Raises `ScriptError` with every mistake."""
    if data is None:
        return Script()
    if not isinstance(data, list):
        raise ScriptError([f"rules: a list of rules is needed, not {shown(data)}"])
    reader = _Reader(vocabulary)
    rules = tuple(reader.rule(item, f"rules[{index}]") for index, item in enumerate(data))
    if reader.mistakes.lines:
        raise ScriptError(reader.mistakes.lines)
    return Script(rules)


class _Reader:
    """Reads one script; `mistakes` grow on the way."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._markup = Markup(vocabulary)
        self.mistakes = Mistakes()

    def rule(self, data: Any, path: str) -> Rule:
        data = self.mistakes.mapping(data, path, _RULE_KEYS)
        if data and "reply" not in data:
            self.mistakes.add(path, "`reply` is missing: give a list of steps")
        cached = data.get("cached_tokens")
        sizes = self._sizes(data.get("tokens_per_step", 1), f"{path}.tokens_per_step")
        return Rule(
            reply=self._steps(data.get("reply", []), f"{path}.reply"),
            when=self._when(data.get("when"), f"{path}.when"),
            tokens_per_step=sizes,
            step_interval_s=self.mistakes.milliseconds(data.get("step_interval_ms", 0), f"{path}.step_interval_ms"),
            cached_tokens=None if cached is None else self.mistakes.integer(cached, f"{path}.cached_tokens"),
            spec=self._spec(data.get("spec"), sizes, f"{path}.spec"),
        )

    def _sizes(self, data: Any, path: str) -> tuple[int, ...]:
        if not isinstance(data, list):
            return (self.mistakes.integer(data, path, minimum=1),)
        if not data:
            self.mistakes.add(path, "is empty: give numbers of tokens, as in `[3, 3, 4]`")
            return (1,)
        return tuple(self.mistakes.integer(item, f"{path}[{index}]", minimum=1) for index, item in enumerate(data))

    def _when(self, data: Any, path: str) -> When:
        if data is None:
            return When()
        data = self.mistakes.mapping(data, path, _WHEN_KEYS)
        texts = {key: self.mistakes.string(data[key], f"{path}.{key}") for key in _WHEN_TEXTS if key in data}
        given: dict[str, Any] = dict(texts)
        if "regex" in texts:
            try:
                given["regex"] = re.compile(texts["regex"])
            except re.error as error:
                self.mistakes.add(f"{path}.regex", f"`{texts['regex']}` is not a regular expression: {error}")
        if isinstance(role := data.get("last_role"), str) and role not in _ROLES:
            roles = ", ".join(f"`{name}`" for name in _ROLES)
            self.mistakes.add(f"{path}.last_role", f"{shown(role)} is no role; roles are {roles}")
        if "after_tools" in data:
            given["after_tools"] = self.mistakes.integer(data["after_tools"], f"{path}.after_tools")
        return When(**given)

    def _spec(self, data: Any, sizes: tuple[int, ...], path: str) -> DraftFigures | None:
        if data is None:
            return None
        data = self.mistakes.mapping(data, path, ("draft", "accepted"))
        draft = self.mistakes.integer(data.get("draft", ABSENT), f"{path}.draft", minimum=1)
        if "accepted" not in data:
            if (most := max(sizes) - 1) > draft:
                self.mistakes.add(f"{path}.draft", f"{draft} is less than the {most} drafted tokens of a step of {most + 1}")
            return DraftFigures(draft)
        accepted = self.mistakes.integer(data["accepted"], f"{path}.accepted")
        if accepted > draft:
            self.mistakes.add(f"{path}.accepted", f"{accepted} is more than the {draft} tokens of `draft`")
        return DraftFigures(draft, accepted)

    def _steps(self, data: Any, path: str) -> tuple[Step, ...]:
        if not isinstance(data, list):
            self.mistakes.add(path, f"a list of steps is needed, not {shown(data)}")
            return ()
        return tuple(self._step(item, f"{path}[{index}]") for index, item in enumerate(data))

    def _step(self, data: Any, path: str) -> Step:
        if isinstance(data, str):
            if data in MARKERS:
                return self._control(data, path)
            if data in _ENDINGS:
                return Word(data)
            endings = ", ".join(f"`{word}`" for word in _ENDINGS)
            self.mistakes.add(path, f"{shown(data)} is no step: a bare word is one of {endings}; text is written `text: …`")
            return Tokens(())
        data = self.mistakes.mapping(data, path, _STEP_KEYS)
        if len(data) > 1:
            self.mistakes.add(path, f"a step has one key, this one has {len(data)}: write a list item for each")
            return Tokens(())
        key, value = next(iter(data.items()), ("", None))
        inner = f"{path}.{key}"
        match key:
            case "text":
                return Tokens(tuple(self._vocabulary.encode(self.mistakes.string(value, inner))))
            case "control":
                return self._control(value, inner)
            case "call" | "argument":
                return Tokens(tuple(self._element(key, value, inner)))
            case "ids":
                return self._ids(value, inner)
            case "wait_ms":
                return Wait(self.mistakes.milliseconds(value, inner))
            case "repeat":
                return self._repeat(value, inner)
            case _:
                return Tokens(())  # no mapping or an unknown key, already reported

    def _control(self, data: Any, path: str) -> Tokens:
        items = data if isinstance(data, list) else [data]
        token_ids: list[int] = []
        for index, item in enumerate(items):
            inner = f"{path}[{index}]"
            if isinstance(item, str):
                try:
                    token_ids += self._markup.word(item)
                except ValueError as error:
                    self.mistakes.add(inner, str(error))
                continue
            item = self.mistakes.mapping(item, inner, tuple(_ELEMENT_KEYS))
            for key, value in item.items():
                token_ids += self._element(key, value, f"{inner}.{key}")
        return Tokens(tuple(token_ids))

    def _element(self, key: str, data: Any, path: str) -> list[int]:
        if key not in _ELEMENT_KEYS:
            return []  # already reported
        data = self.mistakes.mapping(data, path, _ELEMENT_KEYS[key])
        if not data:
            return []
        try:
            if key == "call":
                index = data.get("index", 1)
                number = index if isinstance(index, str) else str(self.mistakes.integer(index, f"{path}.index"))
                tool = self.mistakes.string(data.get("tool", ABSENT), f"{path}.tool")
                return self._markup.opener("call", tool=tool, index=number)
            value = data.get("value", ABSENT)
            if value is ABSENT:
                self.mistakes.add(f"{path}.value", "is missing")
                return []
            name = self.mistakes.string(data.get("key", ABSENT), f"{path}.key")
            kind = self.mistakes.string(data.get("type", json_kind(value)), f"{path}.type")
            return self._markup.argument(name, kind, value)
        except TypeError:
            self.mistakes.add(f"{path}.value", f"{shown(data.get('value'))} is no JSON value: put it in quotes")
        except ValueError as error:
            self.mistakes.add(path, str(error))
        return []

    def _ids(self, data: Any, path: str) -> Tokens:
        if not isinstance(data, list):
            self.mistakes.add(path, f"a list of token ids is needed, not {shown(data)}")
            return Tokens(())
        last = self._vocabulary.size - 1
        return Tokens(tuple(self.mistakes.integer(item, f"{path}[{i}]", maximum=last) for i, item in enumerate(data)))

    def _repeat(self, data: Any, path: str) -> Repeat:
        data = self.mistakes.mapping(data, path, ("times", "of"))
        times = self.mistakes.integer(data.get("times", ABSENT), f"{path}.times")
        steps = self._steps(data.get("of", []), f"{path}.of")
        if not data.get("of"):
            self.mistakes.add(f"{path}.of", "is empty: give the steps to repeat")
        return Repeat(times, steps)
