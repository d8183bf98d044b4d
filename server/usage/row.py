"""The ledger's row of one request.

Role: step 9 of a request: `GenerationRecord` -> what is kept of it for good. The fields are the columns of
`store.tables.ledger`, by name. Must not: read a clock, or know a database.
"""

from __future__ import annotations

from uuid import uuid4

import msgspec

from server.record import GenerationRecord


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request that has ended. `id` is unique in all time: by it, a row that is written twice is kept once.

    Times are of the calendar, in ms since 1970, UTC; None for what did not happen. Fields with defaults may be missing in what an
    older gateway has left behind.
    """

    id: str
    request_id: str
    tenant: str
    model: str
    arrived_unix_ms: int
    ended_unix_ms: int
    outcome: str
    api: str = "chat"
    key_id: str | None = None
    admitted_unix_ms: int | None = None
    first_token_unix_ms: int | None = None
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    discarded_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    images: int = 0
    finish_reason: str | None = None
    cost_nano_usd: int = 0


def row_of(record: GenerationRecord, now_s: float) -> LedgerRow:
    """The row of a request that has ended; at `now_s` of the monotonic clock, where its record does not say when.

    What never reached the engine has used nothing, whatever the record says of its prompt.
    """

    def unix_ms(time_s: float) -> int:
        """A monotonic time on the calendar: what the calendar said at the arrival, and as long after it."""
        return record.arrived_unix_ms + round((time_s - record.arrived_s) * 1000)

    has_run = record.was_dispatched
    return LedgerRow(
        id=uuid4().hex,
        request_id=record.request_id,
        tenant=record.tenant,
        key_id=record.key_id,
        model=record.model,
        api=record.api,
        arrived_unix_ms=record.arrived_unix_ms,
        admitted_unix_ms=None if record.admitted_s is None else unix_ms(record.admitted_s),
        first_token_unix_ms=None if record.first_token_s is None else unix_ms(record.first_token_s),
        ended_unix_ms=unix_ms(now_s if record.ended_s is None else record.ended_s),
        input_tokens=record.num_input_tokens if has_run else 0,
        cached_tokens=record.num_cached_tokens if has_run else 0,
        output_tokens=record.num_output_tokens if has_run else 0,
        reasoning_tokens=record.num_reasoning_tokens if has_run else 0,
        discarded_tokens=record.num_discarded_tokens if has_run else 0,
        draft_tokens=record.num_draft_tokens if has_run else 0,
        accepted_tokens=record.num_accepted_tokens if has_run else 0,
        images=record.num_images,
        finish_reason=record.finish_reason,
        outcome=record.outcome,
        cost_nano_usd=record.cost_nano_usd if has_run else 0,
    )
