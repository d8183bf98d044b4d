"""Queries that both pages, or several rows, ask."""

from __future__ import annotations

from typing import Final

from deploy.grafana.panels import Limits, Line
from deploy.grafana.queries import gauge, or_zero, quantile, rate, ratio, share

FAILED: Final = "~error|engine_dead|timeout|rejected|invalid_tool_call"
"""Outcomes that are a fault of ours, or a want of ours. What a client did wrong, or a limit forbade, is none."""
OBJECTIVE: Final = 0.01
"""The share of first tokens that may be late; see `deploy/prometheus/rules/recording.yml`."""
SPEED = "request_output_tokens_per_second"
SHARE_LIMITS = Limits(0.85, 0.97)

TOKENS_OUT = rate("tokens_total", kind="output")
HIT_RATE = ratio(rate("engine_prefix_cache_hit_tokens_total"), rate("engine_prefix_cache_queried_tokens_total"))
TOKENS_PER_STEP = "1 + " + ratio(rate("engine_spec_accepted_tokens_total"), rate("engine_spec_drafts_total"))
TOKENS_PER_STEP_BY = "1 + " + ratio(
    rate("engine_spec_accepted_tokens_total", ["instance"]), rate("engine_spec_drafts_total", ["instance"])
)
BY_POSITION = share(rate("engine_spec_accepted_tokens_total", ["position"]), rate("engine_spec_drafts_total"))
FAILING = ratio(or_zero(rate("requests_total", outcome=FAILED)), rate("requests_total"))
WAITING = or_zero(gauge("sum", "queued_requests"))
SEATS_TAKEN = ratio(gauge("sum", "engine_running_requests"), gauge("sum", "engine_seats"))
LAG = quantile(0.99, "event_loop_lag_seconds")


def percentiles(name: str, *shares: float) -> list[Line]:
    """Lines of a histogram's percentiles; `shares` from 0 to 1."""
    return [Line(quantile(part, name), f"p{part * 100:g}") for part in shares]
