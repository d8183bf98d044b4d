"""K3's markers as nodes: control tokens by id, with their names between them.

`<|open|>tag<|sep|>` and `<|close|>tag<|sep|>`; see `prompts/xtml`.
"""

from __future__ import annotations

from server.grammar.guard import Guard
from server.grammar.nodes import Control, Literal, Node
from server.vocabulary.base import Vocabulary


class Markup:
    """The markers of one vocabulary. Raises `ValueError` where it lacks one."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        missing = [name for name in ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>") if name not in vocabulary.control]
        if missing:
            raise ValueError(f"the vocabulary has no control token `{missing[0]}`")
        self.guard = Guard(vocabulary)
        self.open = Control(vocabulary.control["<|open|>"])
        self.close = Control(vocabulary.control["<|close|>"])
        self.sep = Control(vocabulary.control["<|sep|>"])
        self.end = vocabulary.control["<|end_of_msg|>"]

    def opened(self, tag: str) -> tuple[Node, ...]:
        """An element without attributes begins."""
        return (self.open, Literal(tag), self.sep)

    def closed(self, tag: str) -> tuple[Node, ...]:
        """An element ends."""
        return (self.close, Literal(tag), self.sep)
