"""What tokens cost the engine, in one currency: the service that tenants are served by.

Invariant: whole numbers only. What is charged and taken back again leaves exactly nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from server.models import Price

UNIT: Final = 10**9
"""One uncached input token. Small weights and cheap cached tokens leave no room for a coarser one."""

_USUAL: Final = Price(input=300, cached_input=30, output=1500)


@dataclass(slots=True, frozen=True)
class Rates:
    """The service of one token, in 10**-9 uncached input tokens."""

    input: int
    cached_input: int
    output: int

    @classmethod
    def of(cls, price: Price) -> Rates:
        """In the proportions of the model's prices; 3 : 0.3 : 15 where it has none."""
        if not (price.input and price.output):
            price = _USUAL
        return cls(UNIT, UNIT * price.cached_input // price.input, UNIT * price.output // price.input)

    def over(self, weight: float) -> Rates:
        """What one token moves the counter of a tenant of `weight`."""
        return Rates(round(self.input / weight), round(self.cached_input / weight), round(self.output / weight))
