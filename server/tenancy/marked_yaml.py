"""YAML (and JSON) as plain values, with the line of each, and everything in it that can't be meant.

Role: for files that people write, of which every mistake is to be named. Stricter than YAML: keys are text, and stand once.
"""

from __future__ import annotations

from typing import Any, Final

import yaml
from yaml.constructor import SafeConstructor

from server.quoting import shown

Path = tuple[str | int, ...]
TEXT: Final = "tag:yaml.org,2002:str"
MERGE: Final = "tag:yaml.org,2002:merge"
_BEING_READ: Final = object()


class MarkedYaml:
    """One document. `value` is None for an empty one; what could not be read is None in it.

    `mistakes`: by line and path, the first of each place. `is_json`: tabs are blanks, which YAML does not take between values.
    """

    def __init__(self, text: str, *, is_json: bool = False) -> None:
        self.mistakes: dict[tuple[int, Path], str] = {}
        self.value: Any = None
        self._lines: dict[Path, int] = {}
        self._values: dict[int, Any] = {}  # by the identity of nodes: an alias is read once, so that no document grows
        self._constructor = SafeConstructor()
        try:
            root = yaml.compose(text.replace("\t", " ") if is_json else text, Loader=yaml.SafeLoader)
            if root is not None:
                self.value = self._read(root, ())
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            self.mistakes[line, ()] = f"is not YAML: {error.problem or error.context}"
        except yaml.YAMLError as error:
            self.mistakes[1, ()] = f"is not YAML: {str(error).partition(chr(10))[0]}"
        except RecursionError:
            self.mistakes[1, ()] = "is nested too deeply"

    def line(self, path: Path) -> int:
        """Where the value of `path` is, or else what it would be in."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)

    def wrong(self, path: Path, what: str, line: int | None = None) -> None:
        """Note a mistake, unless that place has one."""
        self.mistakes.setdefault((line or self.line(path), path), what)

    def _read(self, node: yaml.Node, path: Path) -> Any:
        if id(node) not in self._values:
            self._lines.setdefault(path, node.start_mark.line + 1)  # of an alias only its key's line is known
            self._values[id(node)] = _BEING_READ
            if isinstance(node, yaml.MappingNode):
                value: Any = self._mapping(node, path)
            elif isinstance(node, yaml.SequenceNode):
                value = [self._read(item, (*path, number)) for number, item in enumerate(node.value)]
            else:
                value = self._scalar(node, path)
            self._values[id(node)] = value
        elif self._values[id(node)] is _BEING_READ:
            self.wrong(path, "refers to itself")
            return None
        return self._values[id(node)]

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self.wrong((*path, "?"), "a key must be text", line)
            elif key.tag == MERGE:
                for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    of = self._read(source, (*path, "<<"))
                    if isinstance(of, dict):
                        merged = of | merged
                    else:
                        self.wrong((*path, "<<"), "must be a mapping, or a list of them", line)
            elif key.value in seen:
                self.wrong((*path, key.value), f"stands here and in line {seen[key.value]}; leave one out", line)
            else:
                here = (*path, key.value)
                seen[key.value] = self._lines[here] = line
                if key.tag != TEXT:
                    self.wrong(here, "is not read as text; put the name in quotes")
                own[key.value] = self._read(value, here)
        return merged | own

    def _scalar(self, node: yaml.Node, path: Path) -> Any:
        try:
            return self._constructor.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            what = error.problem if isinstance(error, yaml.MarkedYAMLError) else str(error).partition(";")[0]
            self.wrong(path, f"`{shown(node.value)}`: {what}")
            return None
