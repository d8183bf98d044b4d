"""The prefix cache of real vLLM: shared by a tenant with itself and its group, and with nobody else, by the engine's own counts."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import pytest

from tests.wire.real_tenants import STREAM, Counts, RealTenants, usage_of

pytestmark = pytest.mark.vllm

BLOCK_TOKENS = 32
"""Of the CPU profile: only whole blocks are found again, and the last token of a prompt never."""
PAIRS = {
    "itself": ("ann", "ann", True),
    "another": ("ann", "bea", False),
    "another, the other way round": ("bea", "ann", False),
    "one of its group": ("cid", "dot", True),
    "one of its group, the other way round": ("dot", "cid", True),
    "one in a group": ("ann", "cid", False),
    "one that is in no group": ("cid", "ann", False),
    "one that has the name of its group": ("cid", "choir", False),
    "the group that has its name": ("choir", "cid", False),
    "the configured key's tenant": ("ann", "default", False),
}


@dataclass(frozen=True)
class Asked:
    """What the client, the ledger and vLLM say of one request."""

    usage: dict[str, Any]
    row: dict[str, Any]
    counts: Counts
    num_told_cached: float

    @property
    def num_cached(self) -> int:
        """Cached tokens; all four must agree."""
        (num,) = {
            self.usage["prompt_tokens_details"]["cached_tokens"],
            self.row["cached_tokens"],
            self.counts.hit_tokens,
            self.counts.cached_tokens,
            round(self.num_told_cached),
        }
        assert self.row["input_tokens"] == self.counts.prompt_tokens == self.counts.queried_tokens
        return num

    @property
    def num_can_be_cached(self) -> int:
        return (self.row["input_tokens"] - 1) // BLOCK_TOKENS * BLOCK_TOKENS


class Asker:
    """Asks as tenants, one request at a time."""

    def __init__(self, tenants: RealTenants, prompt: str) -> None:
        self.tenants = tenants
        self.prompt = prompt

    def body(self, target: Any, **fields: Any) -> dict[str, Any]:
        body: dict[str, Any] = target.body(self.prompt, max_tokens=4, **fields)
        return body

    def ask(self, tenant: str, **fields: Any) -> Asked:
        target = self.tenants.target if tenant == "default" else self.tenants.named(tenant)
        cached = f'kind="cached_input",model="kimi-k3",tenant="{tenant}"'
        before, told_before = self.tenants.counts(), self.tenants.scrape().sum("k3gw_tokens_total", cached)
        answer = self.tenants.http.post(
            f"{target.base_url}/chat/completions", json=self.body(target, **fields), headers=target.headers
        )
        assert 200 == answer.status_code, answer.text
        counts = self.tenants.counts().since(before)
        row = self.tenants.row(tenant, answer.headers["x-request-id"])
        return Asked(usage_of(answer), row, counts, self.tenants.scrape().sum("k3gw_tokens_total", cached) - told_before)


@pytest.fixture
def asker(tenants: RealTenants, request: pytest.FixtureRequest) -> Asker:
    """With a prompt of a hundred tokens that no other test has, from its first block on."""
    own = blake2b(request.node.name.encode(), digest_size=6).hexdigest()
    return Asker(tenants, f"{own}: " + "Which of these words is the longest, and which is the shortest? " * 8)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("first", "second", "is_shared"), PAIRS.values(), ids=PAIRS.keys())
def test_who_finds_whose_prompt(asker: Asker, first: str, second: str, is_shared: bool, stream: bool) -> None:
    fields = STREAM if stream else {}
    once = asker.ask(first, **fields)
    again = asker.ask(second, **fields)

    assert once.num_can_be_cached >= 3 * BLOCK_TOKENS
    assert 0 == once.num_cached
    assert (again.num_can_be_cached if is_shared else 0) == again.num_cached


def test_who_was_answered_from_nobodys_cache_finds_its_own(asker: Asker) -> None:
    """So what a tenant is refused is another's prompt, not the cache."""
    num_cached = [asker.ask(tenant).num_cached for tenant in ("ann", "bea", "choir", "cid", "ann", "bea", "choir", "cid", "dot")]

    assert [0] * 4 + [asker.ask("ann").num_can_be_cached] * 5 == num_cached


def test_who_leaves_a_group_or_joins_it_finds_accordingly(asker: Asker, tenants: RealTenants) -> None:
    asker.ask("cid")
    tenants.put("eve")
    alone = asker.ask("eve")
    tenants.put("eve", cache_group="choir")
    joined = asker.ask("eve")
    tenants.put("eve", cache_group="other")
    moved = asker.ask("eve")
    tenants.put("eve")
    left = asker.ask("eve")

    found = [asked.num_cached for asked in (alone, joined, moved, left)]
    assert [0, joined.num_can_be_cached, 0, left.num_can_be_cached] == found, "what it asked alone is its own, before and after"


@pytest.mark.parametrize("salt", ["", "choir", "ann", "group:choir", "tenant:ann", None])
def test_no_client_chooses_its_salt(asker: Asker, tenants: RealTenants, salt: str | None) -> None:
    before = tenants.counts()
    target = tenants.named("bea")
    answer = tenants.http.post(
        f"{target.base_url}/chat/completions", json=asker.body(target, cache_salt=salt), headers=target.headers
    )

    assert (400, "cache_salt") == (answer.status_code, answer.json()["error"]["param"])
    assert before == tenants.counts(), "the engine was asked"


@pytest.mark.parametrize("field", ["user", "prompt_cache_key", "safety_identifier"])
def test_no_name_that_a_client_may_give_leads_to_anothers_cache(asker: Asker, field: str) -> None:
    asker.ask("ann", **{field: "ann"})

    assert [0, True] == [asker.ask("bea", **{field: "ann"}).num_cached, asker.ask("ann", **{field: "bea"}).num_cached > 0]
