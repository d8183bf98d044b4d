"""How much memory the requests hold that have not ended: their bodies, and the images that were fetched for them.

Role: shared by the edge, which counts bodies as they arrive, and `media/`. Invariant: what was taken is given back, by whoever
took it; one tenant's requests leave room for every other's.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

from server.errors import OverloadedError, RateLimitError

SHARE_OF_ONE_TENANT: Final = 0.25


class HeldBytes:
    """At most `most` bytes of all tenants together, and a quarter of that of one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of_tenant: Counter[str] = Counter()
        self._total = 0
        self._forgotten: deque[tuple[str, int]] = deque()

    @property
    def total(self) -> int:
        """Bytes held now."""
        self._give_forgotten()
        return self._total

    def take(self, tenant: str, num_bytes: int) -> None:
        """Count `num_bytes` more; they are counted, and to be given back, also where this raises.

        Raises `RateLimitError` where the tenant's requests hold too much, `OverloadedError` where all of them do.
        """
        self._give_forgotten()
        self._total += num_bytes
        self._of_tenant[tenant] += num_bytes
        if self._of_tenant[tenant] > self._most * SHARE_OF_ONE_TENANT:
            raise RateLimitError(
                "your requests under way hold too much data; try again when some have ended", reason="held_bytes"
            )
        if self._total > self._most:
            raise OverloadedError("the requests under way hold too much data; try again in a moment", retry_after_s=1)

    def give(self, tenant: str, num_bytes: int) -> None:
        """Count `num_bytes` less."""
        self._give_forgotten()
        self._give(tenant, num_bytes)

    def forget(self, tenant: str, num_bytes: int) -> None:
        """As `give`, a little later; may be called in any thread, and in the middle of anything, as a finaliser is."""
        self._forgotten.append((tenant, num_bytes))

    def _give_forgotten(self) -> None:
        while self._forgotten:
            self._give(*self._forgotten.popleft())

    def _give(self, tenant: str, num_bytes: int) -> None:
        self._total -= num_bytes
        self._of_tenant[tenant] -= num_bytes
        if not self._of_tenant[tenant]:
            del self._of_tenant[tenant]
