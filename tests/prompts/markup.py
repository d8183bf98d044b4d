"""K3's markup read back from token ids, for tests: what the model sees, apart from how it was written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from server.vocabulary.base import Vocabulary

_ATTRIBUTE = re.compile(r' (\w+)="([^"]*)"')


@dataclass
class Element:
    """`<|open|>tag key="value"<|sep|>` children `<|close|>tag<|sep|>`. A text is one child, however it was cut into segments.

    `ended`: a message has `<|end_of_msg|>` behind it. `closed`: False for what the model is to go on with.
    """

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[str | Element] = field(default_factory=list)
    closed: bool = True
    ended: bool = False


def message(role: str, *children: str | Element, ended: bool = True, closed: bool = True, **attributes: str) -> Element:
    """A message, without the empty texts among `children`."""
    return Element("message", {"role": role, **attributes}, [child for child in children if child != ""], closed, ended)


def element(tag: str, *children: str | Element, closed: bool = True, **attributes: str) -> Element:
    """Any other element, without the empty texts among `children`."""
    return Element(tag, attributes, [child for child in children if child != ""], closed)


def read(token_ids: Sequence[int], vocabulary: Vocabulary) -> list[Element]:
    """The messages of a prompt. Raises `AssertionError` where there is text between elements' tags, or a tag closes another."""
    top = Element("")
    open_elements = [top]
    pieces = _pieces(token_ids, vocabulary)
    for kind, text in pieces:
        inside = open_elements[-1]
        if kind == "text":
            inside.children.append(text)
        elif kind == "<|open|>":
            opened = _header(_text_before_sep(pieces))
            inside.children.append(opened)
            open_elements.append(opened)
        elif kind == "<|close|>":
            assert _text_before_sep(pieces) == inside.tag
            open_elements.pop()
            open_elements[-1].children[-1] = inside
        elif kind == "<|end_of_msg|>":
            last = inside.children[-1]
            assert isinstance(last, Element)
            last.ended = True
        else:
            raise AssertionError(f"`{kind}` stands for itself")
    for left_open in open_elements:
        left_open.closed = False
    assert all(isinstance(child, Element) for child in top.children)
    return [child for child in top.children if isinstance(child, Element)]


def _pieces(token_ids: Sequence[int], vocabulary: Vocabulary) -> Iterator[tuple[str, str]]:
    names = {token_id: name for name, token_id in vocabulary.control.items()}
    for name, run in groupby(token_ids, names.get):
        if name is None:
            yield "text", vocabulary.decode(list(run))
        else:
            for _ in run:
                yield name, ""


def _text_before_sep(pieces: Iterator[tuple[str, str]]) -> str:
    kind, text = next(pieces)
    assert kind == "text"
    assert next(pieces) == ("<|sep|>", "")
    return text


def _header(text: str) -> Element:
    tag = re.match(r"[a-z]+", text)
    assert tag is not None
    attributes = list(_ATTRIBUTE.finditer(text, tag.end()))
    assert text == tag[0] + "".join(found[0] for found in attributes)
    values = {found[1]: found[2].replace("&quot;", '"').replace("&amp;", "&") for found in attributes}
    assert len(values) == len(attributes)
    return Element(tag[0], values)
