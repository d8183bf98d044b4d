"""The other workers of a gateway that has several, as one of them sees them."""

from __future__ import annotations

from typing import Protocol


class Others(Protocol):
    """Asks them. `server.workers.peers.Peers` is that."""

    @property
    def index(self) -> int:
        """Which worker this one is, from 0."""
        ...

    @property
    def count(self) -> int:
        """How many there are, this one among them."""
        ...

    async def ask_all(self, question: str, argument: bytes = b"") -> list[list[bytes]]:
        """The parts of each worker's answer, this one's too, in the order of the workers.

        Raises `OverloadedError` where one does not answer.
        """
        ...

    async def ask(self, index: int, question: str, argument: bytes = b"") -> list[bytes]:
        """The parts of one worker's answer; raises as `ask_all` does."""
        ...
