"""Every metric of the gateway: name, kind, unit, labels, buckets, meaning, and how many series it may have.

Role: the one place where a metric is declared; `docs/metrics.md` is made from it. Names are a contract with dashboards and
alerts. Invariant: labels come from closed sets, or from configured names (tenants, models) up to a cap, never from what a client
sent; so the number of series has a maximum, whatever comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from server.pace import GAP_BOUNDS_S

PREFIX: Final = "k3gw_"
OTHER: Final = "other"
"""What stands for tenants beyond the cap, and for a value that is in no closed set."""

FIXED: Final = ("",)
"""The values of a label that has one, known at the start."""

DEFAULT_MAX_TENANTS: Final = 1000
MAX_POSITIONS: Final = 32


@dataclass(slots=True, frozen=True)
class Limits:
    """What the number of series depends on: how many tenants have a name of their own, and how many models are configured."""

    max_tenants: int = DEFAULT_MAX_TENANTS
    num_models: int = 1


@dataclass(slots=True, frozen=True)
class Label:
    """One label. `values`: the closed set they come from, empty for configured names; `origin`: where they come from."""

    name: str
    origin: str
    values: tuple[str, ...] = ()

    def most(self, limits: Limits) -> int:
        """How many values there can be: the empty one of what is not known, and `other`, included."""
        if self.name == "tenant":
            return limits.max_tenants + 2
        if self.name == "model":
            return limits.num_models + 1
        if self.values == FIXED:
            return 1
        return len(self.values) + (OTHER not in self.values)


@dataclass(slots=True, frozen=True)
class Metric:
    """One metric, its name without the prefix. `buckets` are upper bounds, in `unit`, without the last one, which is infinite.

    `over_workers`: what the whole of a gateway says where each of its processes says something. Of the engine's metrics it is not
    asked: their whole is made of the engine's own counts.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    meaning: str
    by: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()
    over_workers: Literal["sum", "max", "min"] = "sum"

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels' names."""
        return tuple(label.name for label in self.by)

    def most_series(self, limits: Limits) -> int:
        """How many series it has at most."""
        number = len(self.buckets) + 3 if self.kind == "histogram" else 1  # the last bucket, the sum, the count
        for label in self.by:
            number *= label.most(limits)
        return number


TENANT = Label("tenant", "of the store, the first `metrics.max_tenants` that are active; then `other`; empty: no valid key")
MODEL = Label("model", "configured names; empty: none of them was asked for")
API = Label("api", "what was asked, empty: no API of ours", ("chat", ""))
OUTCOME = Label(
    "outcome",
    "how the request ended",
    (
        "finished", "cancelled", "invalid", "unauthenticated", "denied", "limited", "over_budget", "rejected", "timeout", "error",
        "engine_dead", "invalid_tool_call",
    ),
)  # fmt: skip
TOKEN_KIND = Label("kind", "what the tokens were", ("input", "cached_input", "output", "reasoning", "discarded"))
REASON = Label(
    "reason",
    "which limit, budget or bound",
    (
        "requests", "input_tokens", "uncached_input_tokens", "output_tokens", "concurrent_requests", "queue_full", "held_bytes",
        "image_queue_full", "budget", "tokens_per_day", "tokens_per_month", "usd_per_day", "usd_per_month", "overloaded",
        "draining", "queue_timeout", "limits_unavailable", "engine_dead",
    ),
)  # fmt: skip
CALL = Label("outcome", "what became of the call", ("delivered", "invalid", "undeclared", "retried", "cut", "refused"))
ANSWER = Label("outcome", "what became of the answer", ("delivered", "invalid", "cut"))
IMAGE = Label("outcome", "what became of the image", ("loaded", "refused", "failed"))
ROW = Label("outcome", "what became of the row", ("written", "garbled", "refused", "lost"))
RECOVERY = Label(
    "kind",
    "which anomaly",
    (
        "unclosed_think", "answered_in_think", "ended_in_think", "unclosed_response", "unclosed_tools", "missing_opener",
        "reopened_channel", "repeated_channel", "text_after_response", "stray_text", "after_message", "spelled_marker",
        "missing_separator", "broken_marker", "unknown_marker", "misplaced_marker", "stray_control", "undeclared_tool",
        "forbidden_call", "extra_call", "unnamed_call", "unclosed_call", "unnamed_argument", "unclosed_argument",
        "duplicate_argument", "mixed_arguments", "bare_json_arguments", "untyped_argument", "wrong_type", "coerced_value",
        "invalid_json",
    ),
)  # fmt: skip
POSITION = Label("position", "place in the draft, from 0", tuple(str(number) for number in range(MAX_POSITIONS - 1)))
VERSION, ENGINE_KIND, PROFILE = (Label(name, "fixed at the start", FIXED) for name in ("version", "engine", "profile"))

# A histogram by tenant costs every tenant its buckets and three series more in each scrape, so each has about ten: enough for a
# p50 and a p99 to be told apart within a factor of two to three, where the bounds are also those of usual objectives (0.5, 1,
# 2.5, 5 s). Means are exact, by `_sum / _count`. Histograms without a tenant can afford finer ones.
_REQUEST_S: Final = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
_TTFT_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_QUEUE_S: Final = (0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_SPEEDS: Final = (5.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 150.0, 200.0, 300.0, 400.0, 600.0)
_OURS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_LAG_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

_WHO: Final = (TENANT, MODEL)
REQUESTS = Metric("requests_total", "counter", "requests", "Requests that ended, by how.", (*_WHO, API, OUTCOME))
TOKENS = Metric(
    "tokens_total",
    "counter",
    "tokens",
    "Tokens of requests that ended, cancelled ones included. `input` counts whole prompts, and `cached_input` what of them was "
    "in the prefix cache; `output` counts all that was generated, and `reasoning` what of it was thinking; `discarded` came "
    "beside it, for calls that were sampled again.",
    (*_WHO, TOKEN_KIND),
)
REQUEST_SECONDS = Metric("request_seconds", "histogram", "seconds", "From arrival to the last byte.", _WHO, _REQUEST_S)
TTFT_SECONDS = Metric("ttft_seconds", "histogram", "seconds", "From arrival to the first token.", _WHO, _TTFT_S)
INTER_TOKEN = Metric(
    "inter_token_seconds",
    "histogram",
    "seconds",
    "For each token, the time between two outputs of the engine divided by the tokens of the later one; those of an answer's "
    "first output have none.",
    _WHO,
    GAP_BOUNDS_S,
)
OUTPUT_SPEED = Metric(
    "request_output_tokens_per_second",
    "histogram",
    "tokens per second",
    "Decode speed of one answer after its first output; a request with `n` has that many.",
    _WHO,
    _SPEEDS,
)
QUEUE_SECONDS = Metric("queue_seconds", "histogram", "seconds", "Wait for a seat in the engine.", _WHO, _QUEUE_S)
OVERHEAD = Metric(
    "overhead_seconds",
    "histogram",
    "seconds",
    "The gateway's own part of requests that the engine was asked: their time less their waits for a seat, for the engine from "
    "asking to its last output, and for the client to send its body and take its answer. Fetching and decoding of images is in "
    "it; what is done with an output while the engine makes the next one is not, as it holds up nobody.",
    (MODEL,),
    _OURS_S,
)
INFLIGHT = Metric("inflight_requests", "gauge", "requests", "Generations under way.", _WHO)
REJECTED = Metric(
    "rejected_total", "counter", "requests", "Requests refused, or ended, for want of room, by what had none.", (TENANT, REASON)
)
TOOL_CALLS = Metric("tool_calls_total", "counter", "calls", "Tool calls, by what became of them.", (*_WHO, CALL))
JSON_ANSWERS = Metric(
    "json_answers_total", "counter", "answers", "Answers that were to fit a schema, by what became of them.", (*_WHO, ANSWER)
)
DRAFT_TOKENS = Metric(
    "spec_draft_tokens_total",
    "counter",
    "tokens",
    "Tokens drafted for requests; the engine tells when an answer ends by itself, so cancelled ones are missing.",
    _WHO,
)
ACCEPTED_TOKENS = Metric("spec_accepted_tokens_total", "counter", "tokens", "Those of them that were taken.", _WHO)
RECOVERIES = Metric(
    "parser_recoveries_total", "counter", "anomalies", "Anomalies of a model's output that were read around.", (RECOVERY,)
)
IMAGES = Metric("images_total", "counter", "images", "Images: loaded, refused by a bound or a rule, or failed.", (IMAGE,))
IMAGE_TOKENS = Metric(
    "image_tokens_total", "counter", "tokens", "Prompt tokens of images, of requests that the engine was asked."
)
LOOP_LAG = Metric(
    "event_loop_lag_seconds", "histogram", "seconds", "How late a timer rang, looked at four times a second.", (), _LAG_S
)
BUILD_INFO = Metric("build_info", "gauge", "1", "What runs here; always 1.", (VERSION, ENGINE_KIND, PROFILE), over_workers="max")

QUEUED = Metric("queued_requests", "gauge", "requests", "Choices of requests that wait for a seat; `other`: the sum.", (TENANT,))
FAIR_SERVICE = Metric(
    "fair_service_tokens_total",
    "counter",
    "tokens",
    "Service as the fair queue counts it: in uncached input tokens' worth; `other`: the sum.",
    (TENANT,),
)
WEIGHT = Metric(
    "tenant_weight",
    "gauge",
    "weight",
    "Share of a busy engine, against the others'; `other`: the sum.",
    (TENANT,),
    over_workers="max",
)
BUDGET_LEFT = Metric(
    "budget_remaining_ratio",
    "gauge",
    "ratio",
    "Of the tenant's tightest budget, the share that is left, 0 to 1; `other`: the least.",
    (TENANT,),
    over_workers="min",
)
LEDGER_ROWS = Metric(
    "ledger_rows_total", "counter", "rows", "Rows of ended requests: written; or garbled in the spool, refused, lost.", (ROW,)
)
LEDGER_PENDING = Metric("ledger_pending_rows", "gauge", "rows", "Rows that wait for the database.")
LIMITS_UP = Metric(
    "limits_store_up", "gauge", "1 or 0", "1 while the limits store answers; also where limits are in memory.", over_workers="min"
)
LIMITS_AWAY = Metric("limits_store_failures_total", "counter", "failures", "How often the limits store stopped answering.")
HELD_BYTES = Metric("held_bytes", "gauge", "bytes", "Bodies and fetched images that requests hold which have not ended.")

ENGINE_UP = Metric("engine_up", "gauge", "1 or 0", "1 while the engine can take requests.")
ENGINE_SEATS = Metric("engine_seats", "gauge", "requests", "Requests that the engine runs at once, at most.")
ENGINE_CONTEXT = Metric("engine_context_tokens", "gauge", "tokens", "Tokens of prompt and answer together, at most.")
ENGINE_RUNNING = Metric("engine_running_requests", "gauge", "requests", "Requests that hold a seat in the engine.")
ENGINE_WAITING = Metric("engine_waiting_requests", "gauge", "requests", "Requests that wait inside the engine.")
ENGINE_KV_USAGE = Metric("engine_kv_cache_usage_ratio", "gauge", "ratio", "Share of the KV cache in use, 0 to 1.")
ENGINE_PREEMPTIONS = Metric(
    "engine_preemptions_total", "counter", "requests", "Requests that lost their place in the KV cache to others."
)
ENGINE_PREFIX_QUERIED = Metric(
    "engine_prefix_cache_queried_tokens_total", "counter", "tokens", "Prompt tokens looked up in the prefix cache."
)
ENGINE_PREFIX_HIT = Metric(
    "engine_prefix_cache_hit_tokens_total", "counter", "tokens", "Prompt tokens found in the prefix cache."
)
ENGINE_DRAFTS = Metric("engine_spec_drafts_total", "counter", "steps", "Steps that drafted tokens.")
ENGINE_DRAFT_TOKENS = Metric("engine_spec_draft_tokens_total", "counter", "tokens", "Drafted tokens.")
ENGINE_ACCEPTED = Metric("engine_spec_accepted_tokens_total", "counter", "tokens", "Drafted tokens that were taken.", (POSITION,))

RECORDED = (
    REQUESTS, TOKENS, REQUEST_SECONDS, TTFT_SECONDS, INTER_TOKEN, OUTPUT_SPEED, QUEUE_SECONDS, OVERHEAD, INFLIGHT, REJECTED,
    TOOL_CALLS, JSON_ANSWERS, DRAFT_TOKENS, ACCEPTED_TOKENS, RECOVERIES, IMAGES, IMAGE_TOKENS, LOOP_LAG, BUILD_INFO,
)  # fmt: skip
FROM_ADMISSION = (
    QUEUED, FAIR_SERVICE, WEIGHT, BUDGET_LEFT, LEDGER_ROWS, LEDGER_PENDING, LIMITS_UP, LIMITS_AWAY, HELD_BYTES,
)  # fmt: skip
FROM_ENGINE = (
    ENGINE_UP, ENGINE_SEATS, ENGINE_CONTEXT, ENGINE_RUNNING, ENGINE_WAITING, ENGINE_KV_USAGE, ENGINE_PREEMPTIONS,
    ENGINE_PREFIX_QUERIED, ENGINE_PREFIX_HIT, ENGINE_DRAFTS, ENGINE_DRAFT_TOKENS, ENGINE_ACCEPTED,
)  # fmt: skip
CATALOG = RECORDED + FROM_ADMISSION + FROM_ENGINE


def most_series(limits: Limits) -> int:
    """How many series all metrics of the catalog have together, at most."""
    return sum(metric.most_series(limits) for metric in CATALOG)
