"""Which tenants have series of their own, and which share one.

Invariant: at most `most` tenants have; a tenant keeps what it has as long as the process lives, so that counters never go back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from server.metrics.catalog import OTHER


class TenantNames:
    """Gives tenants their label. The empty name is nobody's and counts as none."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._labels: dict[str, str] = {"": "", OTHER: OTHER}
        self._num_own = 0

    def label(self, tenant: str) -> str:
        """The label of a tenant that is active: the first ones have their own."""
        label = self._labels.get(tenant)
        if label is not None:
            return label
        if self._num_own >= self._most:
            return OTHER
        self._num_own += 1
        self._labels[tenant] = tenant
        return tenant

    def shown(self, tenant: str) -> str:
        """The label of a tenant that may never have been active."""
        return self._labels.get(tenant, OTHER)

    def adopt(self, tenants: Collection[str]) -> None:
        """Let all of these have their own, where there is room for all."""
        if self._num_own + len(tenants) <= self._most or len(self._labels.keys() | tenants) - 2 <= self._most:
            for tenant in tenants:
                self.label(tenant)

    def summed(self, values: Mapping[str, float]) -> dict[str, float]:
        """`values` of tenants, by label; those that share one are added."""
        sums: dict[str, float] = {}
        for tenant, value in values.items():
            label = self._labels.get(tenant, OTHER)
            sums[label] = sums.get(label, 0) + value
        return sums
