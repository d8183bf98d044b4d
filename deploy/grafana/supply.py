"""Rows of the operator's page: what is in short supply, what fails, and how the gateway itself is."""

from __future__ import annotations

from deploy.grafana.figures import FAILED, SHARE_LIMITS, WAITING, percentiles
from deploy.grafana.page import Panel
from deploy.grafana.panels import TOKENS_PER_S, Column, Limits, Line, graph, sheet
from deploy.grafana.queries import gauge, rate, recorded, share


def queue() -> list[Panel]:
    """What is in short supply."""
    return [
        graph(
            "Requests that wait",
            "For a seat, in the gateway's fair queue; and inside the engine, which should be few.",
            "short",
            Line(WAITING, "for a seat"),
            Line(gauge("sum", "engine_waiting_requests"), "in the engine"),
            limits=Limits(20, 200),
        ),
        graph(
            "Wait for a seat",
            "Of requests that had to wait or might have.",
            "s",
            *percentiles("queue_seconds", 0.5, 0.95, 0.99),
            limits=Limits(5, 60),
        ),
        graph(
            "Seats",
            "Requests in the engines, against the seats that there are.",
            "short",
            Line(gauge("sum", "engine_running_requests", ["instance"]), "{{instance}}: taken"),
            Line(gauge("sum", "engine_seats", ["instance"]), "{{instance}}: seats"),
        ),
        graph(
            "Saturation",
            "Seats taken, and the KV cache in use. At 97 % of the KV cache no more seats are given.",
            "percentunit",
            Line(recorded("instance:k3gw_engine_seats_taken:ratio"), "{{instance}}: seats"),
            Line(gauge("max", "engine_kv_cache_usage_ratio", ["instance"]), "{{instance}}: KV cache"),
            limits=SHARE_LIMITS,
            most=1,
        ),
        graph(
            "Preemptions per second",
            "Requests that lost their place in the KV cache to others and begin again: the engine was given too much.",
            "ops",
            Line(rate("engine_preemptions_total", ["instance"]), "{{instance}}"),
            limits=Limits(0.01, 0.1),
        ),
        graph(
            "Refused for want of room",
            "By what had none: a limit of the tenant's, the queue, the memory for bodies.",
            "reqps",
            Line(rate("rejected_total", ["reason"]), "{{reason}}"),
            stacked=True,
        ),
    ]


def answers() -> list[Panel]:
    """What became of requests, calls and images."""
    bad = rate("requests_total", ["outcome"], outcome=FAILED)
    return [
        graph(
            "Requests that fail",
            "Share of all requests, by what was wrong on our side.",
            "percentunit",
            Line(share(bad, rate("requests_total")), "{{outcome}}"),
            limits=Limits(0.01, 0.05),
        ),
        graph(
            "Tool calls",
            "`delivered` fit their schema. `invalid` and `undeclared` were delivered and do not; `retried` were sampled again.",
            "ops",
            Line(rate("tool_calls_total", ["outcome"]), "{{outcome}}"),
            stacked=True,
        ),
        graph(
            "Answers that were to fit a schema",
            "By what became of them.",
            "ops",
            Line(rate("json_answers_total", ["outcome"]), "{{outcome}}"),
            stacked=True,
        ),
        graph(
            "Anomalies of answers",
            "What a model wrote against its own format, and was read around.",
            "ops",
            Line(rate("parser_recoveries_total", ["kind"]), "{{kind}}"),
            limits=Limits(1),
        ),
        graph(
            "Images",
            "Loaded; refused by a bound or a rule; failed: not fetched or not decoded.",
            "ops",
            Line(rate("images_total", ["outcome"]), "{{outcome}}"),
            stacked=True,
        ),
        graph(
            "Tokens of images", "Prompt tokens of images in a second.", TOKENS_PER_S, Line(rate("image_tokens_total"), "tokens")
        ),
    ]


def gateway() -> list[Panel]:
    """What is the gateway's own."""
    return [
        graph(
            "Event-loop lag",
            "How late a timer runs. What holds the loop holds every stream.",
            "s",
            *percentiles("event_loop_lag_seconds", 0.5, 0.99),
            limits=Limits(0.02, 0.1),
        ),
        graph(
            "Held for requests",
            "Bytes of bodies and fetched images of requests that have not ended.",
            "bytes",
            Line(gauge("max", "held_bytes", ["instance"]), "{{instance}}"),
            limits=Limits(3 * 2**30, 4 * 2**30),
        ),
        graph(
            "Ledger rows waiting, by replica",
            "On the spool, until the database takes them.",
            "short",
            Line(gauge("max", "ledger_pending_rows", ["instance"]), "{{instance}}"),
            limits=Limits(100, 1000),
        ),
        graph(
            "Ledger rows per second",
            "`written` is well; `garbled`, `refused` and `lost` are not in the database.",
            "ops",
            Line(rate("ledger_rows_total", ["outcome"]), "{{outcome}}"),
        ),
        graph(
            "Limits store, by replica",
            "1 while a replica reaches it; and how often in a second it was lost.",
            "short",
            Line(gauge("min", "limits_store_up", ["instance"]), "{{instance}}"),
            Line(rate("limits_store_failures_total"), "losses per second"),
            limits=Limits(poor=1, bad=0.5),
        ),
        sheet(
            "Versions",
            "What runs where: how many requests its engine runs at once, and how long one may be.",
            "instance",
            Column("Up", "short", gauge("max", "build_info", ["instance", "version", "engine", "profile"])),
            Column("Seats", "short", gauge("max", "engine_seats", ["instance"])),
            Column("Context", "short", gauge("min", "engine_context_tokens", ["instance"])),
            hidden=["Value #A"],
        )
        .span(8)
        .height(8),
    ]
