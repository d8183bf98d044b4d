"""The calls of an answer, in order and out of it."""

from __future__ import annotations

import json

from tests.parsers.answer_draft import NAMES, Draft
from tests.parsers.answer_values import Value, attribute, draw_value

KEYS = ("city", "days", "ключ", 'a"b&c', "x&quot;", "k 1")


class CallDraft(Draft):
    """Writes one call after the other."""

    def _call(self, *, is_last: bool) -> None:
        if self._has("unnamed_call"):
            self._open_call('call index="7"')
            self.kinds["unnamed_call"] += 1
            self._mark("close", "call")
            self.is_call_open = False
        name = self.random.choice(NAMES)
        if self._has("undeclared_tool"):
            name = "another"
        self._open_call(f'call tool="{attribute(name)}" index="{self.num_calls + 1}"')
        if self.max_calls is not None and self.num_calls >= self.max_calls:
            self.kinds["extra_call" if self.max_calls else "forbidden_call"] += 1
        else:
            self.kinds["undeclared_tool"] += self.tools is not None and name not in self.tools
            self.words.append(["call", self.num_calls, name])
            self.num_calls += 1
            self.arguments = ""
        if not self._stray_text() and self._has("bare_json"):
            self._bare_json()
        elif self.random.random() < 0.15:
            self._json_body()
        else:
            self._arguments_of_call()
        self._end_of_call(is_last=is_last)

    def _open_call(self, header: str) -> None:
        self._mark("open", header)
        if self.place != "tools":
            self._leave()
            self.kinds["missing_opener"] += 1
            self.place = "tools"
        self._end_call()
        self.is_call_open = True
        self.has_json = False

    def _stray_text(self) -> bool:
        if not self._has("stray_text"):
            return False
        self.pieces.append(self.random.choice((" oops ", "\nlet me <see>", "]")))
        self.kinds["stray_text"] += 1
        return True

    def _bare_json(self) -> None:
        self.pieces.append('{"a": [1, "}"]}')
        if self.arguments is None:
            self.kinds["stray_text"] += 1
        else:
            self.kinds["bare_json_arguments"] += 1
            self.arguments = '{"a": [1, "}"]}'
            self.is_value_open = True

    def _json_body(self) -> None:
        body = self.random.choice(('{"a": {"b":1.50}, "c":"é"}', '{\n "<|sep|>": null\n}', "{}"))
        self._mark("open", 'json type="object"')
        self.pieces += [body, ["close", "json", "sep"]]
        self.has_json = True
        if self.arguments is not None:
            self.arguments = body

    def _arguments_of_call(self) -> None:
        for key in self.random.sample(KEYS, self.random.randrange(4)):
            if self._has("unnamed_argument"):
                self._argument(None)
            self._argument(key)
            if self._has("duplicate_argument"):
                self._argument(key)
        if self.arguments and self._has("mixed_arguments"):
            self._mark("open", "json")
            self.kinds["unclosed_argument"] += self.is_value_open
            self.is_value_open = False
            self.kinds["mixed_arguments"] += 1
            self.pieces += ["{}", ["close", "json", "sep"]]

    def _argument(self, key: str | None) -> None:
        value = draw_value(self.random, typed=self.typed)
        named = "" if key is None else f' key="{attribute(self._key(key))}"'
        self._mark("open", f"argument{named}" + (f' type="{value.tag}"' if value.tag else ""))
        self.kinds["unclosed_argument"] += self.is_value_open
        self.is_value_open = True
        cut = self.random.randrange(len(value.text) + 1)
        self.pieces.append(value.text[:cut])
        self._oddities("think", None)
        self.pieces.append(value.text[cut:])
        if self.arguments is not None:
            self._value_said(key, value)
        if not self._has("argument_unclosed"):
            self.pieces.append(["close", "argument", "sep"])
            self.is_value_open = False

    def _key(self, key: str) -> str:
        """Keys are of one call only, so that the types of a key are those of one value."""
        return f"{self.num_calls}{key}"

    def _value_said(self, key: str | None, value: Value) -> None:
        written = json.dumps("" if key is None else self._key(key), ensure_ascii=False) + ": "
        if key is None:
            self.kinds["unnamed_argument"] += 1
        elif self.arguments and written in self.arguments:
            self.kinds["duplicate_argument"] += 1
        else:
            before = self.arguments[:-1] + ", " if self.arguments else "{"
            self.arguments = before + written + value.expected + "}"
            self.kinds.update(value.kinds)
            if value.types is not None:
                self.types[self._key(key)] = value.types

    def _end_of_call(self, *, is_last: bool) -> None:
        may_go_on = not self.is_value_open and not self.has_json
        if may_go_on and is_last and self._has("ends_in_argument"):
            self._cut_argument()
        elif may_go_on and self._has("broken_off"):
            self._open_last_argument("broken off")
            if self.arguments is not None:
                self._value_said("last", Value("string", "broken off", None, '"broken off"'))
            self.pieces.append(["close", "response", "sep"])
            self._leave()
            self.place = "after_tools"
            self._mark("open", "tools")
            self.kinds["repeated_channel"] += 1
            self.place = "tools"
        elif not self._has("call_unclosed"):
            self._mark("close", "call")
            self.kinds["unclosed_argument"] += self.is_value_open
            self.is_value_open = False
            self._deliver()
            self._stray_text()

    def _open_last_argument(self, text: str) -> None:
        self._mark("open", f'argument key="{attribute(self._key("last"))}" type="string"')
        self.pieces.append(text)
        self.is_value_open = True

    def _cut_argument(self) -> None:
        self._open_last_argument("cut")
        if self.arguments is not None:
            key = json.dumps(self._key("last"), ensure_ascii=False)
            start = self.arguments[:-1] + ", " if self.arguments else "{"
            self.words += [["arguments", self.num_calls - 1, f'{start}{key}: "cut'], ["cut", self.num_calls - 1]]
        self.kinds["unclosed_argument"] += 1
        self.pieces.append(["end_of_msg"])
        self.is_value_open = self.is_call_open = False
        self.arguments, self.place = None, "end"
