"""Invented log probabilities look like log probabilities."""

from __future__ import annotations

import math

import pytest

from server.engine.scripted.answer import fake_logprob


@pytest.mark.parametrize("num_top", [0, 1, 5, 20])
@pytest.mark.parametrize("token_id", [0, 49, 50, 511])
def test_alternatives_are_best_first_distinct_and_a_distribution(token_id: int, num_top: int) -> None:
    made = fake_logprob(token_id, num_top, 512)
    assert num_top == len(made.top) == len({alternative for alternative, _ in made.top})
    assert sorted((logprob for _, logprob in made.top), reverse=True) == [logprob for _, logprob in made.top]
    assert math.fsum(math.exp(logprob) for _, logprob in made.top) < 1
    assert all(0 <= alternative < 512 for alternative, _ in made.top)
    assert [(token_id, made.logprob)][:num_top] == list(made.top[:1])
    assert made == fake_logprob(token_id, num_top, 512)
