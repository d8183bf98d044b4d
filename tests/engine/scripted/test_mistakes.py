"""All mistakes of a script are told, each with its place."""

from __future__ import annotations

from typing import Any

import pytest

from server.engine.scripted.script import ScriptError, parse_script
from server.vocabulary.byte import ByteVocabulary

VOCABULARY = ByteVocabulary()


class NoControls(ByteVocabulary):
    """A vocabulary without K3's structure, as a plain model has."""

    @property
    def control(self) -> dict[str, int]:
        return {"</s>": 256}


def mistakes(data: Any, vocabulary: ByteVocabulary = VOCABULARY) -> list[str]:
    with pytest.raises(ScriptError) as caught:
        parse_script(data, vocabulary)
    return caught.value.mistakes


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (3, "rules[0]: `3` is not a mapping"),
        ({}, "rules[0]: is empty"),
        ({"tokens_per_step": 2}, "rules[0]: `reply` is missing"),
        ({"reply": "hi"}, "rules[0].reply: a list of steps is needed, not `'hi'`"),
        ({"reply": [], "replies": []}, "rules[0]: unknown key `replies`"),
        ({"reply": [], "tokens_per_step": 0}, "rules[0].tokens_per_step: `0` is not a whole number from 1 on"),
        ({"reply": [], "step_interval_ms": "fast"}, "rules[0].step_interval_ms: `'fast'` is not a number of milliseconds"),
        ({"reply": [], "step_interval_ms": float("inf")}, "rules[0].step_interval_ms: `inf` is not"),
        ({"reply": [], "cached_tokens": -1}, "rules[0].cached_tokens: `-1` is not a whole number from 0 on"),
        ({"reply": [], "cached_tokens": True}, "rules[0].cached_tokens: `True` is not a whole number"),
        ({"reply": [], "spec": {"draft": 3, "accepted": 4}}, "rules[0].spec.accepted: 4 is more than the 3 tokens of `draft`"),
        ({"reply": [], "tokens_per_step": [3, 0]}, "rules[0].tokens_per_step[1]: `0` is not a whole number from 1 on"),
        ({"reply": [], "tokens_per_step": []}, "rules[0].tokens_per_step: is empty: give numbers of tokens, as in `[3, 3, 4]`"),
        (
            {"reply": [], "tokens_per_step": [1, 5], "spec": {"draft": 3}},
            "rules[0].spec.draft: 3 is less than the 4 drafted tokens of a step of 5",
        ),
        ({"reply": [], "when": {"contain": "x"}}, "rules[0].when: unknown key `contain`"),
        ({"reply": [], "when": {"contains": 3}}, "rules[0].when.contains: `3` is not text"),
        ({"reply": [], "when": {"regex": "("}}, "rules[0].when.regex: `(` is not a regular expression"),
        ({"reply": [], "when": {"last_role": "wizard"}}, "rules[0].when.last_role: `'wizard'` is no role; roles are `user`, "),
        ({"reply": [], "when": {"last_role": ""}}, "rules[0].when.last_role: `''` is no role"),
        ({"reply": [], "when": {"last_role": 1}}, "rules[0].when.last_role: `1` is not text"),
        ({"reply": [], "when": {"last_contains": None}}, "rules[0].when.last_contains: `None` is not text"),
        ({"reply": [], "when": {"after_tools": -1}}, "rules[0].when.after_tools: `-1` is not a whole number from 0 on"),
        ({"reply": [], "when": {"after_tools": "1"}}, "rules[0].when.after_tools: `'1'` is not a whole number"),
        ({"reply": ["hello"]}, "rules[0].reply[0]: `'hello'` is no step"),
        ({"reply": [None]}, "rules[0].reply[0]: `None` is not a mapping"),
        ({"reply": [{"txt": "a"}]}, "rules[0].reply[0]: unknown key `txt`"),
        ({"reply": [{"text": "a", "wait_ms": 1}]}, "rules[0].reply[0]: a step has one key, this one has 2"),
        ({"reply": [{"text": True}]}, "rules[0].reply[0].text: `True` is not text"),
        ({"reply": [{"ids": 3}]}, "rules[0].reply[0].ids: a list of token ids is needed"),
        ({"reply": [{"ids": [0, 512]}]}, "rules[0].reply[0].ids[1]: `512` is not a whole number from 0 to 511"),
        ({"reply": [{"wait_ms": -1}]}, "rules[0].reply[0].wait_ms: `-1` is not"),
        ({"reply": [{"repeat": {"of": ["stop"]}}]}, "rules[0].reply[0].repeat.times: is missing"),
        ({"reply": [{"repeat": {"times": 2}}]}, "rules[0].reply[0].repeat.of: is empty"),
        ({"reply": [{"repeat": {"times": 2, "of": [{"ids": "x"}]}}]}, "rules[0].reply[0].repeat.of[0].ids: a list"),
        ({"reply": [{"control": ["open", 7]}]}, "rules[0].reply[0].control[1]: `7` is not a mapping"),
        ({"reply": [{"control": [{"cal": {}}]}]}, "rules[0].reply[0].control[0]: unknown key `cal`"),
        ({"reply": [{"call": {"index": 1}}]}, "rules[0].reply[0].call.tool: is missing"),
        ({"reply": [{"call": {"tool": "f", "index": -1}}]}, "rules[0].reply[0].call.index: `-1` is not"),
        ({"reply": [{"argument": {"key": "k"}}]}, "rules[0].reply[0].argument.value: is missing"),
        ({"reply": [{"argument": {"value": 1}}]}, "rules[0].reply[0].argument.key: is missing"),
        ({"reply": [{"argument": {"key": "k", "value": {1, 2}}}]}, "rules[0].reply[0].argument.value: `{1, 2}` is no JSON value"),
    ],
)
def test_one_mistake_is_told_once_with_its_place(rule: Any, expected: str) -> None:
    told = mistakes([rule])
    assert expected == told[0][: len(expected)]
    assert 1 == len(told)


def test_every_mistake_is_told() -> None:
    rules = [{"reply": ["nonsense", {"ids": [-1]}]}, {"reply": [], "spec": []}, {"when": 1, "reply": [{"wait_ms": "1"}]}]
    places = ["rules[0].reply[0]", "rules[0].reply[1].ids[0]", "rules[1].spec", "rules[1].spec.draft"]
    told = mistakes(rules)
    assert [*places, "rules[2].reply[0].wait_ms", "rules[2].when"] == [line.split(":")[0] for line in told]


def test_the_error_shows_every_mistake() -> None:
    error = ScriptError(["rules[0]: a", "rules[1]: b"])
    assert isinstance(error, ValueError)
    assert "the script has mistakes:\n  rules[0]: a\n  rules[1]: b" == str(error)


def test_structure_needs_a_vocabulary_that_has_it() -> None:
    reply = [{"control": ["open", "think"]}, {"call": {"tool": "f"}}, {"text": "fine"}]
    told = mistakes([{"reply": reply}], NoControls())
    assert ["rules[0].reply[0].control[0]", "rules[0].reply[1].call"] == [line.split(":")[0] for line in told]


@pytest.mark.parametrize("data", [{"rules": []}, "stop", 3])
def test_a_script_is_a_list(data: Any) -> None:
    assert "rules: a list of rules is needed" == mistakes(data)[0][:32]
