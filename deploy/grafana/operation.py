"""The operator's page: what goes in and out, how fast it is for one user, and what is in short supply."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from deploy.grafana.figures import FAILING, HIT_RATE, LAG, SEATS_TAKEN, SHARE_LIMITS, SPEED, TOKENS_OUT, TOKENS_PER_STEP, WAITING
from deploy.grafana.page import Panel, page
from deploy.grafana.panels import TOKENS_PER_S, Limits, figure
from deploy.grafana.queries import gauge, mean, quantile, ratio
from deploy.grafana.speed import cache, speed, traffic
from deploy.grafana.supply import answers, gateway, queue


def operation() -> dashboard.Dashboard:
    """The page."""
    rows = [
        ("At a glance", _glance()),
        ("Traffic", traffic()),
        ("Speed", speed()),
        ("Queue and saturation", queue()),
        ("Prefix cache and speculation (DSpark)", cache()),
        ("Answers and errors", answers()),
        ("The gateway itself", gateway()),
    ]
    return page(
        "k3gw-operation", "k3-gateway: operation", "What all tenants get from all replicas, and what is in short supply.", rows
    )


def _glance() -> list[Panel]:
    return [
        figure(
            "Engines up",
            "Of the replicas that can be scraped, the share whose engine takes requests.",
            "percentunit",
            ratio(gauge("sum", "engine_up"), gauge("count", "engine_up")),
            Limits(1, 0.5),
        ),
        figure(
            "Tokens out",
            "Tokens that were generated in a second, all answers together. An answer counts when it ends.",
            TOKENS_PER_S,
            TOKENS_OUT,
        ),
        figure(
            "Decode speed of one user",
            "How fast an answer comes after its first token, on average over answers.",
            TOKENS_PER_S,
            mean(SPEED),
            Limits(50, 20),
        ),
        figure(
            "First token, p95",
            "From arrival to the first token; 19 of 20 are faster.",
            "s",
            quantile(0.95, "ttft_seconds"),
            Limits(5, 10),
        ),
        figure(
            "Waiting",
            "Choices of requests that wait for a seat in the engine.",
            "short",
            WAITING,
            Limits(20, 200),
        ),
        figure("Seats taken", "Share of the engines' seats that requests hold.", "percentunit", SEATS_TAKEN, SHARE_LIMITS),
        figure(
            "Prefix cache hits",
            "Of the prompt tokens that were looked up, the share that needed no prefill.",
            "percentunit",
            HIT_RATE,
            Limits(0.3, 0.05),
        ),
        figure(
            "Tokens per step",
            "What one step of the engine gives one answer: 1, and what speculation adds.",
            "short",
            TOKENS_PER_STEP,
            Limits(2, 1.2),
            2,
        ),
        figure(
            "Requests failing",
            "Share of requests that ended in a fault of ours: error, dead engine, time-out, no room.",
            "percentunit",
            FAILING,
            Limits(0.01, 0.05),
        ),
        figure(
            "Event-loop lag, p99",
            "How late the gateway's event loop runs a timer. All streams wait that long.",
            "s",
            LAG,
            Limits(0.02, 0.1),
        ),
        figure(
            "Ledger rows waiting",
            "Rows on the spool that the database has not taken yet.",
            "short",
            gauge("sum", "ledger_pending_rows"),
            Limits(100, 1000),
        ),
        figure(
            "Limits store",
            "1 while every replica reaches the store that limits are counted in.",
            "short",
            gauge("min", "limits_store_up"),
            Limits(1, 0.5),
        ),
    ]
