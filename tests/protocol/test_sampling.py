"""Hosted K3's rules for sampling, and what `pin` makes of values it does not take."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.errors import InvalidRequestError
from server.protocol.chat import ChatRequest, parse
from server.protocol.sampling import FIXED, apply_sampling_rule

OTHER: dict[str, Any] = {
    "temperature": 1.1,
    "top_p": 0.8,
    "n": 2,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "logit_bias": {"1": 2},
    "ignore_eos": True,
}
SAME: list[dict[str, Any]] = [
    {},
    dict.fromkeys(FIXED),
    {name: value for name, value in FIXED.items() if value is not None},
    {"temperature": 1, "top_k": -1, "logit_bias": {}, "presence_penalty": -0.0},
]


def request(**fields: Any) -> ChatRequest:
    return parse(json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}).encode())


def fixed(of: ChatRequest) -> dict[str, Any]:
    return {name: getattr(of, name) for name in FIXED}


@pytest.mark.parametrize("fields", [*SAME, OTHER])
def test_open_changes_nothing(fields: dict[str, Any]) -> None:
    wanted = request(**fields)

    assert (wanted, ()) == apply_sampling_rule(wanted, "open")


@pytest.mark.parametrize("rule", ["moonshot", "pin"])
@pytest.mark.parametrize("fields", SAME)
def test_what_hosted_k3_uses_anyway_is_taken(rule: Any, fields: dict[str, Any]) -> None:
    result, ignored = apply_sampling_rule(request(**fields), rule)

    unset = {"temperature": None} if rule == "moonshot" and fields.get("temperature") is None else {}
    assert {**FIXED, **unset} == fixed(result), "a temperature that is left out is the model's own"
    assert () == ignored


@pytest.mark.parametrize("temperature", [0, 0.0, 0.6, 1.0])
def test_moonshot_takes_temperatures_up_to_one(temperature: float) -> None:
    result, ignored = apply_sampling_rule(request(temperature=temperature), "moonshot")

    assert {**FIXED, "temperature": temperature} == fixed(result)
    assert () == ignored


@pytest.mark.parametrize("name", OTHER)
def test_moonshot_refuses_anything_else(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="for this model it must be") as caught:
        apply_sampling_rule(request(**{name: OTHER[name]}), "moonshot")

    assert name == caught.value.param


def test_pin_takes_anything_and_names_what_it_ignored() -> None:
    wanted = request(**OTHER)
    result, ignored = apply_sampling_rule(wanted, "pin")

    assert FIXED == fixed(result)
    assert tuple(FIXED) == ignored
    assert OTHER == fixed(wanted), "the request itself stays as it is"
    assert ("temperature",) == apply_sampling_rule(request(temperature=0), "pin")[1]


def test_other_fields_stay() -> None:
    for rule in ("moonshot", "pin"):
        result, _ = apply_sampling_rule(request(seed=3, stop=["a"], max_tokens=7, logprobs=True), rule)  # type: ignore[arg-type]
        assert (3, ("a",), 7, True) == (result.seed, result.stop_strings, result.output_cap, result.logprobs)


@pytest.mark.parametrize(
    ("stop", "param"),
    [(["a"] * 6, "stop"), ("x" * 33, "stop"), (["a", "é" * 17], "stop[1]"), (["a" * 32] * 5, None), ("é" * 16, None)],
)
def test_moonshot_bounds_stop_strings_by_bytes(stop: Any, param: str | None) -> None:
    wanted = request(stop=stop)
    assert () == apply_sampling_rule(wanted, "pin")[1]
    if param is None:
        assert () == apply_sampling_rule(wanted, "moonshot")[1]
        return
    with pytest.raises(InvalidRequestError, match="for this model at most") as caught:
        apply_sampling_rule(wanted, "moonshot")
    assert param == caught.value.param
