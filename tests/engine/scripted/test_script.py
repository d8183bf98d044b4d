"""Reading scripts: what every step means, and that all mistakes are told."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from server.engine.base import EngineHints, Sampling
from server.engine.scripted.reply import Ending, Output, Wait, Word, outputs
from server.engine.scripted.rules import DraftFigures, Script
from server.engine.scripted.script import ScriptError, parse_script, read_script
from server.vocabulary.byte import ByteVocabulary
from server.vocabulary.load import load

DOCUMENTED = Path(__file__).resolve().parents[3] / "docs" / "scripted.md"
VOCABULARY = ByteVocabulary()
OPEN, CLOSE, SEP, END = (VOCABULARY.control[f"<|{name}|>"] for name in ("open", "close", "sep", "end_of_msg"))


def played(
    *reply: Any, tokens_per_step: int | list[int] = 1_000_000, max_tokens: int = 1_000_000, **sampling: Any
) -> list[Output | Wait | Word]:
    rule = parse_script([{"reply": list(reply)}], VOCABULARY).rules[0]
    ending = Ending(END, frozenset({END}), max_tokens, Sampling(max_tokens, **sampling))
    sizes = (tokens_per_step,) if isinstance(tokens_per_step, int) else tuple(tokens_per_step)
    return list(outputs(rule.reply, sizes, ending))


def said(*reply: Any) -> list[int]:
    """Token ids of a reply that ends as with `stop`, without the end token."""
    (output,) = played(*reply)
    assert isinstance(output, Output)
    assert ("stop", END) == (output.finish, output.token_ids[-1])
    return list(output.token_ids[:-1])


def marker(kind: int, text: str) -> list[int]:
    return [kind, *text.encode(), SEP]


def test_text_is_ordinary_tokens_also_where_it_spells_a_marker() -> None:
    assert list(b"<|open|>think<|sep|>") == said({"text": "<|open|>think<|sep|>"})


def test_control_words_are_control_tokens_and_other_words_are_tag_names() -> None:
    assert marker(CLOSE, "think") == said({"control": ["close", "think", "sep"]})


@pytest.mark.parametrize("tag", ["think", "response", "tools"])
def test_opening_shorthands(tag: str) -> None:
    assert marker(OPEN, tag) == said({"control": [f"<{tag}>"]})


@pytest.mark.parametrize("tag", ["think", "response", "tools", "call", "argument", "message"])
def test_closing_shorthands(tag: str) -> None:
    assert marker(CLOSE, tag) == said({"control": [f"</{tag}>"]}) == said(f"</{tag}>")


def test_any_control_token_goes_by_its_full_name() -> None:
    assert [VOCABULARY.control["[EOS]"]] == said({"control": ["[EOS]"]})


def test_ids_are_taken_as_they_are() -> None:
    assert [1, OPEN, 255] == said({"ids": [1, OPEN, 255]})


@pytest.mark.parametrize("as_own_step", [True, False])
def test_call_is_an_opener_with_escaped_attributes(as_own_step: bool) -> None:
    call = {"call": {"tool": 'a&"b', "index": 2}}
    expected = marker(OPEN, 'call tool="a&amp;&quot;b" index="2"')
    assert expected == said(call if as_own_step else {"control": [call]})


@pytest.mark.parametrize("as_own_step", [True, False])
@pytest.mark.parametrize(
    ("argument", "kind", "text"),
    [
        ({"value": "plain <|close|>"}, "string", "plain <|close|>"),
        ({"value": 4}, "number", "4"),
        ({"value": 1.5}, "number", "1.5"),
        ({"value": True}, "boolean", "true"),
        ({"value": None}, "null", "null"),
        ({"value": ["é", 1]}, "array", '["é", 1]'),
        ({"value": {"a": 1}}, "object", '{"a": 1}'),
        ({"type": "number", "value": "007"}, "number", "007"),
        ({"type": "string", "value": 7}, "string", "7"),
    ],
)
def test_argument_is_a_whole_element(as_own_step: bool, argument: dict[str, Any], kind: str, text: str) -> None:
    step = {"argument": {"key": "k", **argument}}
    expected = [*marker(OPEN, f'argument key="k" type="{kind}"'), *text.encode(), *marker(CLOSE, "argument")]
    assert expected == said(step if as_own_step else {"control": [step]})


def test_repeat_plays_its_steps_again_and_may_be_nested() -> None:
    inner = {"repeat": {"times": 2, "of": [{"text": "b"}]}}
    assert list(b"abbabbabb") == said({"repeat": {"times": 3, "of": [{"text": "a"}, inner]}})
    assert [] == said({"repeat": {"times": 0, "of": [{"text": "a"}]}})


def test_repeat_is_lazy() -> None:
    rule = parse_script([{"reply": [{"repeat": {"times": 10**12, "of": [{"text": "ab"}]}}]}], VOCABULARY).rules[0]
    ending = Ending(END, frozenset({END}), 10**12, Sampling(10**12))
    assert [b"aba", b"bab"] == [
        bytes(item.token_ids) for item in islice(outputs(rule.reply, (3,), ending), 2) if isinstance(item, Output)
    ]


def test_a_list_of_tokens_per_step_is_gone_through_again_and_again_and_waits_count_as_a_step_border() -> None:
    expected = [Output(tuple(part)) for part in (b"abc", b"d", b"efg", b"h")]
    assert [*expected, Output((END,), "stop")] == played({"text": "abcdefgh"}, tokens_per_step=[3, 1])
    waited = [Output((97,)), Wait(0.5), Output((98,)), Output((99, END), "stop")]
    assert waited == played({"text": "a"}, {"wait_ms": 500}, {"text": "bc"}, tokens_per_step=[3, 1])


def test_outputs_hold_tokens_per_step_and_cross_step_borders() -> None:
    expected = [Output((97, 98)), Output((99, 100)), Output((101, END), "stop")]
    assert expected == played({"text": "abc"}, {"text": "de"}, "stop", tokens_per_step=2)


def test_a_pause_lets_out_what_was_said_before_it() -> None:
    expected = [Output((97,)), Wait(0.5), Output((98, END), "stop")]
    assert expected == played({"text": "a"}, {"wait_ms": 500}, {"text": "b"}, tokens_per_step=8)


@pytest.mark.parametrize("word", ["error", "die", "hang"])
def test_a_fault_lets_out_what_was_said_before_it_and_ends_the_reply(word: str) -> None:
    assert [Output((97,)), Word(word)] == played({"text": "a"}, word, {"text": "b"}, tokens_per_step=8)


def test_length_ends_without_an_end_token() -> None:
    assert [Output((97, 98), "length")] == played({"text": "ab"}, "length")
    assert [Output((), "length")] == played("length")


def test_stop_and_the_end_of_the_reply_say_the_end_token() -> None:
    assert [Output((97, END), "stop")] == played({"text": "a"}, "stop", {"text": "b"}) == played({"text": "a"})
    assert [Output((END,), "stop")] == played()


def test_an_end_token_within_the_reply_ends_it() -> None:
    assert [Output((97, END), "stop")] == played({"text": "a"}, {"control": ["end_of_msg"]}, {"text": "b"})


@pytest.mark.parametrize("tokens_per_step", [1, 2, 3, 7])
def test_max_tokens_is_exact(tokens_per_step: int) -> None:
    items = [
        item for item in played({"text": "abcdefgh"}, tokens_per_step=tokens_per_step, max_tokens=5) if isinstance(item, Output)
    ]
    assert b"abcde" == b"".join(bytes(item.token_ids) for item in items)
    assert [None] * (len(items) - 1) + ["length"] == [item.finish for item in items]


def test_a_stop_token_ends_the_answer_and_is_named() -> None:
    assert [Output((97, 98), "stop", 98)] == played({"text": "abc"}, stop_token_ids=(98,))
    assert [Output((97, 98), "stop", 98)] == played({"text": "abc"}, stop_token_ids=(98,), max_tokens=2)


def test_an_answer_that_ignores_its_end_starts_over() -> None:
    assert [Output((97, END, 97, END, 97), "length")] == played({"text": "a"}, "stop", max_tokens=5, ignore_eos=True)
    assert [Output((97, END), "stop", None)] == played({"text": "a"}, ignore_eos=True, stop_token_ids=(END,))


@pytest.mark.parametrize(
    ("when", "matching", "other"),
    [
        ({"contains": "rain"}, EngineHints(last_user_text="will it rain?"), EngineHints(last_user_text="sun")),
        ({"regex": "^a+$"}, EngineHints(last_user_text="aaa"), EngineHints(last_user_text="baaa")),
        ({"tenant": "acme"}, EngineHints(tenant="acme"), EngineHints(tenant="acme2")),
        ({"model": "k3"}, EngineHints(model="k3"), EngineHints(model="")),
        ({"last_role": "tool"}, EngineHints(last_role="tool"), EngineHints(last_role="user")),
        (
            {"last_contains": "rain"},
            EngineHints(last_text="no rain", last_user_text="x"),
            EngineHints(last_text="x", last_user_text="rain"),
        ),
        ({"after_tools": 0}, EngineHints(num_tool_results=0), EngineHints(num_tool_results=1)),
        ({"after_tools": 2}, EngineHints(num_tool_results=2), EngineHints(num_tool_results=3)),
        (
            {"contains": "x", "regex": "y", "tenant": "t", "model": "m"},
            EngineHints("t", "m", "xy"),
            EngineHints("t", "m", "x"),
        ),
    ],
)
def test_when_wants_all_that_it_names(when: dict[str, str], matching: EngineHints, other: EngineHints) -> None:
    script = parse_script([{"when": when, "reply": ["stop"]}], VOCABULARY)
    assert [0, None] == [found and found[0] for found in (script.rule_for(matching), script.rule_for(other))]


def test_the_first_rule_that_holds_wins_and_one_without_when_always_does() -> None:
    rules = [{"when": {"contains": "a"}, "reply": []}, {"reply": []}, {"when": {"contains": "b"}, "reply": []}]
    script = parse_script(rules, VOCABULARY)
    found = [script.rule_for(EngineHints(last_user_text=text)) for text in ("ab", "b", "")]
    assert [0, 1, 1] == [rule and rule[0] for rule in found]


def test_the_figures_of_a_rule() -> None:
    rule = {"tokens_per_step": 4, "step_interval_ms": 20, "cached_tokens": 128, "spec": {"draft": 7, "accepted": 3}, "reply": []}
    read = parse_script([rule, {"reply": []}], VOCABULARY).rules
    assert ((4,), 0.02, 128, DraftFigures(7, 3)) == (
        read[0].tokens_per_step,
        read[0].step_interval_s,
        read[0].cached_tokens,
        read[0].spec,
    )
    assert ((1,), 0.0, None, None) == (read[1].tokens_per_step, read[1].step_interval_s, read[1].cached_tokens, read[1].spec)


def test_files_are_yaml_or_json_and_say_the_same(tmp_path: Path) -> None:
    rules = [
        {
            "when": {"contains": "\U0001f600"},
            "reply": [{"text": "tab\t"}, {"repeat": {"times": 1_000_000, "of": ["<think>"]}}, "stop"],
        }
    ]
    as_json, as_yaml, empty = tmp_path / "a.json", tmp_path / "a.yaml", tmp_path / "empty.yaml"
    as_json.write_text(json.dumps(rules, indent="\t"))
    as_yaml.write_text(
        """
- when: {contains: '😀'}
  reply:
    - text: "tab\\t"
    - repeat: {times: 1_000_000, of: ['<think>']}
    - stop
""",
        encoding="utf-8",
    )
    empty.write_text("# nothing yet\n")
    assert parse_script(rules, VOCABULARY) == read_script(as_json, VOCABULARY) == read_script(as_yaml, VOCABULARY)
    assert Script() == read_script(empty, VOCABULARY)


@pytest.mark.parametrize("content", [b"- reply: [", b"\xff\xfe"])
def test_a_file_that_cannot_be_read_as_a_script(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "script.yaml").write_bytes(content)
    with pytest.raises(ScriptError, match=r"script\.yaml"):
        read_script(tmp_path / "script.yaml", VOCABULARY)


def test_k3s_markers_are_the_ids_of_k3s_vocabulary(shared: Path) -> None:
    k3 = load(shared / "k3" / "tiktoken.model")
    reply = [{"control": ["</message>", "<think>", "close", "response", "sep"]}, {"ids": [163588, 2778, 163589]}]
    (rule,) = parse_script([{"reply": reply}], k3).rules
    expected = [163588, 2778, 163589, 163587, 39964, 163589, 163588, 12092, 163589, 163588, 2778, 163589]
    assert expected == [token_id for step in rule.reply for token_id in getattr(step, "token_ids", ())]


def test_the_documented_examples_are_scripts(tmp_path: Path) -> None:
    path = tmp_path / "script.yaml"
    examples = DOCUMENTED.read_text(encoding="utf-8").split("```yaml\n")[1:]
    scripts = []
    for example in examples:
        path.write_text(example.partition("```")[0], encoding="utf-8")
        scripts.append(read_script(path, VOCABULARY))
    every_step, loop = (script.rules for script in scripts)
    assert [(9, "stop", 128, DraftFigures(7, 3))] == [(len(r.reply), r.reply[-1], r.cached_tokens, r.spec) for r in every_step]
    asked = {"last_user_text": "the weather?"}
    said = [
        EngineHints(last_role="user", num_tool_results=0, **asked),
        EngineHints(last_role="tool", last_text="sunny", num_tool_results=2, **asked),
        EngineHints(last_role="tool", last_text="error: no such city", num_tool_results=2, **asked),
    ]
    found = [scripts[1].rule_for(hints) for hints in said]
    assert [loop[0], loop[2], loop[1]] == [rule and rule[1] for rule in found]


@pytest.mark.parametrize("word", list(Word))
def test_every_ending_is_a_step(word: Word) -> None:
    (rule,) = parse_script([{"reply": [str(word)]}], VOCABULARY).rules
    assert (word,) == rule.reply
