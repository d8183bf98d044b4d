"""Every metric of the gateway: name, kind, labels, buckets and meaning.

Role: the one place where a metric is declared. Names are a contract with dashboards and alerts. Labels come from closed
sets, or from configured names (tenants, models), never from what a client sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREFIX = "k3gw_"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
_SPEEDS = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 400.0, 600.0, 1000.0)


@dataclass(slots=True, frozen=True)
class Metric:
    """One metric, its name without the prefix."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


REQUESTS = Metric("requests_total", "counter", "Requests that ended, by how.", ("tenant", "model", "api", "outcome"))
TOKENS = Metric("tokens_total", "counter", "Tokens of requests that ended, cancelled ones included.", ("tenant", "model", "kind"))
REQUEST_SECONDS = Metric("request_seconds", "histogram", "From arrival to the last byte.", ("tenant", "model"), _SECONDS)
TTFT_SECONDS = Metric("ttft_seconds", "histogram", "From arrival to the first token.", ("tenant", "model"), _SECONDS)
OUTPUT_SPEED = Metric(
    "request_output_tokens_per_second",
    "histogram",
    "Decode speed of one answer after its first token; a request with `n` has that many.",
    ("tenant", "model"),
    _SPEEDS,
)
QUEUE_SECONDS = Metric("queue_seconds", "histogram", "Wait for a seat in the engine.", ("tenant", "model"), _SECONDS)
QUEUED = Metric("queued_requests", "gauge", "Choices of requests that wait for a seat.", ("tenant",))
REJECTED = Metric(
    "rejected_total", "counter", "Requests refused, or ended, for want of room, by what had none.", ("tenant", "reason")
)
FAIR_SERVICE = Metric(
    "fair_service_tokens_total", "counter", "Service as the fair queue counts it: in uncached input tokens' worth.", ("tenant",)
)
BUDGET_LEFT = Metric(
    "budget_remaining_ratio", "gauge", "Of the tenant's tightest budget, the share that is left, 0 to 1.", ("tenant",)
)
LEDGER_ROWS = Metric(
    "ledger_rows_total", "counter", "Rows of ended requests: written; or garbled in the spool, refused, lost.", ("outcome",)
)
LEDGER_PENDING = Metric("ledger_pending_rows", "gauge", "Rows that wait for the database.")
LIMITS_AWAY = Metric("limits_store_failures_total", "counter", "How often the limits store stopped answering.")
INFLIGHT = Metric("inflight_requests", "gauge", "Generations under way.", ("tenant", "model"))
TOOL_CALLS = Metric("tool_calls_total", "counter", "Tool calls, by what became of them.", ("tenant", "model", "outcome"))
JSON_ANSWERS = Metric(
    "json_answers_total", "counter", "Answers that were to fit a schema, by what became of them.", ("tenant", "model", "outcome")
)
IMAGES = Metric("images_total", "counter", "Images of requests: loaded, refused by a bound or a rule, or failed.", ("outcome",))
IMAGE_TOKENS = Metric("image_tokens_total", "counter", "Prompt tokens of images, of requests that the engine was asked.")
RECOVERIES = Metric("parser_recoveries_total", "counter", "Anomalies of a model's output that were read around.", ("kind",))
ENGINE_UP = Metric("engine_up", "gauge", "1 while the engine can take requests.")
ENGINE_RUNNING = Metric("engine_running_requests", "gauge", "Requests that hold a seat in the engine.")
ENGINE_WAITING = Metric("engine_waiting_requests", "gauge", "Requests that wait inside the engine.")
ENGINE_KV_USAGE = Metric("engine_kv_cache_usage_ratio", "gauge", "Share of the KV cache in use, 0 to 1.")
ENGINE_PREEMPTIONS = Metric("engine_preemptions_total", "counter", "Requests that lost their place in the KV cache to others.")
ENGINE_PREFIX_QUERIED = Metric(
    "engine_prefix_cache_queried_tokens_total", "counter", "Prompt tokens looked up in the prefix cache."
)
ENGINE_PREFIX_HIT = Metric("engine_prefix_cache_hit_tokens_total", "counter", "Prompt tokens found in the prefix cache.")
ENGINE_DRAFTS = Metric("engine_spec_drafts_total", "counter", "Steps that drafted tokens.")
ENGINE_DRAFT_TOKENS = Metric("engine_spec_draft_tokens_total", "counter", "Drafted tokens.")
ENGINE_ACCEPTED = Metric("engine_spec_accepted_tokens_total", "counter", "Drafted tokens that were taken.", ("position",))

RECORDED = (
    REQUESTS, TOKENS, REQUEST_SECONDS, QUEUE_SECONDS, TTFT_SECONDS, OUTPUT_SPEED, INFLIGHT, REJECTED, TOOL_CALLS, JSON_ANSWERS,
    RECOVERIES, IMAGES, IMAGE_TOKENS,
)  # fmt: skip
FROM_ADMISSION = (QUEUED, FAIR_SERVICE, BUDGET_LEFT, LEDGER_ROWS, LEDGER_PENDING, LIMITS_AWAY)
FROM_ENGINE = (
    ENGINE_UP, ENGINE_RUNNING, ENGINE_WAITING, ENGINE_KV_USAGE, ENGINE_PREEMPTIONS, ENGINE_PREFIX_QUERIED, ENGINE_PREFIX_HIT,
    ENGINE_DRAFTS, ENGINE_DRAFT_TOKENS, ENGINE_ACCEPTED,
)  # fmt: skip
CATALOG = RECORDED + FROM_ADMISSION + FROM_ENGINE
