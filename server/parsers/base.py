"""From generated token ids to events: the contract of a parser.

Role: step 7 of a request. One parser object per answer; synchronous and pure.
Invariant: the events, with neighbouring deltas of a kind joined, depend on the token ids only, not on how they were split over
`feed` calls. Work is linear in the tokens; what is held back is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from server.events import Event

TypesOf = Callable[[str], Mapping[str, frozenset[str]]]


@dataclass(slots=True, frozen=True)
class Expected:
    """What the request lets the answer be; None: not known. It changes how things are read, never whether they can be.

    `tool_names`: the declared tools. `max_calls`: how many calls are delivered; those beyond it are dropped. `types_of`: name of
    a tool -> argument key -> the JSON Schema types that the value may have, of `string integer number boolean null object array`;
    a key that is absent may have any. It is asked once for each call, declared or not, and must not raise.
    """

    tool_names: Collection[str] | None = None
    types_of: TypesOf | None = None
    max_calls: int | None = None


ANYTHING: Final = Expected()


class Parser(Protocol):
    """Reads one answer."""

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens of reasoning text so far, markers not counted."""
        ...

    @property
    def recoveries(self) -> dict[str, int]:
        """How often each kind of anomaly was read around, by kind."""
        ...

    def feed(self, token_ids: Sequence[int]) -> list[Event]:
        """Events of the next tokens, shape (num_new_tokens,). May be empty while something is held back."""
        ...

    def finish(self, reason: str) -> list[Event]:
        """The remaining events; the last is `Finish`. `reason`: the engine's, `stop`, `length` or `abort`. Called once."""
        ...
