"""Our parser beside vLLM's own of Kimi K3's answers: well-formed answers read alike; where not, ours is right, and why is said.

Needs vLLM's Python code, no engine. vLLM parses text, after it was detokenised; ours parses token ids.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from server.events import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallCut, ToolCallStart
from server.parsers.base import Expected
from server.parsers.factory import ParserFactory
from server.vocabulary.byte import ByteVocabulary

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

VOCABULARY = ByteVocabulary()
NUM_ANSWERS = 250
TEXTS = (
    "The fox ",
    "naïve 北京 ",
    "👨‍👩‍👧",
    "\n\n",
    ' "quoted" \\ ',
    "</think>",
    "{",
    "&quot;",
    "<",
    "|>",
    "<|",
    "\t\x01",
    "e\u0301",
)
NAMES = ("get_weather", 'say "hi" & go', "поиск", "a.b-c")
KEYS = ("city", "ключ", 'a"b&c', "x&quot;", "k 1", "with=sign")
OPEN, CLOSE, SEP = "<|open|>", "<|close|>", "<|sep|>"
END = f"{CLOSE}message{SEP}<|end_of_msg|>"
NUMBER = f'{OPEN}argument key="a" type="number"{SEP}1{CLOSE}argument{SEP}'


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")


def call(index: int, arguments: str) -> str:
    """The tools channel up to where its call is to be closed."""
    return f'{OPEN}tools{SEP}{OPEN}call tool="f" index="{index}"{SEP}{arguments}'


def answer(arguments: str) -> str:
    """The rest of an answer, from the close of its response on, with one call."""
    return f"{CLOSE}response{SEP}{call(1, arguments)}{CLOSE}call{SEP}{CLOSE}tools{SEP}{END}"


def write(text: str, spelled: str = "") -> list[int]:
    """Token ids of an answer in which every marker is made of control tokens; `spelled` is ordinary tokens in place of `@`."""
    token_ids: list[int] = []
    control = VOCABULARY.control
    while text:
        name = next((name for name in control if text.startswith(name)), None)
        if name:
            token_ids.append(control[name])
        else:
            token_ids += VOCABULARY.encode(spelled if text[0] == "@" else text[0])
        text = text[len(name or "x") :]
    return token_ids


Answered = tuple[str, str, list[tuple[str, str]]]


def ours(token_ids: list[int], *, thinking: bool, steps: list[list[int]] | None = None) -> Answered:
    """What a client gets from us."""
    parser = ParserFactory("kimi_k3", VOCABULARY).make(thinking=thinking, expected=Expected())
    events = [event for step in steps or [token_ids] for event in parser.feed(step)]
    ended = token_ids[-1:] == [VOCABULARY.control["<|end_of_msg|>"]]
    reasoning = content = ""
    calls: dict[int, tuple[str, str]] = {}
    for event in [*events, *parser.finish("stop" if ended else "length")]:
        match event:
            case ReasoningDelta(text):
                reasoning += text
            case ContentDelta(text):
                content += text
            case ToolCallStart(index, name):
                calls[index] = (name, "")
            case ToolCallArguments(index, fragment):
                calls[index] = (calls[index][0], calls[index][1] + fragment)
            case ToolCallCut(index):
                del calls[index]
    return reasoning, content, list(calls.values())


def theirs(token_ids: list[int], *, thinking: bool, tools: bool = True, steps: list[list[int]] | None = None) -> Answered:
    """What a client gets from vLLM: collected, or streamed in `steps`."""
    from bench.vllm_parser import VllmParser

    parser = VllmParser(VOCABULARY, thinking=thinking, tools=tools)
    answer = parser.whole(token_ids) if steps is None else parser.streamed(steps)
    return answer.reasoning, answer.content, answer.calls


def draw_value(random: Random) -> tuple[str, str, Any]:
    """Type, text and value of an argument, the text as Kimi K3's own renderer writes it."""
    value = random.choice(
        (
            "".join(random.choices(TEXTS, k=random.randrange(4))),
            random.choice((0, -1, 12345678901234567890, 1.5, -2e-9, True, False, None)),
            {"a": [1, {"b": random.choice(TEXTS)}], "é": None},
            [random.choice(TEXTS), [], {}, 3.25],
        )
    )
    if isinstance(value, str):
        return "string", value, value
    kinds = {bool: "boolean", int: "number", float: "number", type(None): "null", dict: "object", list: "array"}
    return kinds[type(value)], json.dumps(value, ensure_ascii=False), value


def draw(random: Random) -> tuple[str, bool, Answered]:
    """A well-formed answer: its text, whether it begins inside think, and what was meant."""
    thinking = random.random() < 0.5
    reasoning = "".join(random.choices(TEXTS, k=random.randrange(4))) if thinking else ""
    content = "".join(random.choices(TEXTS, k=random.randrange(4)))
    content = content + "." if content.isspace() else content  # see `DIFFERENCES`
    text = f"{reasoning}{CLOSE}think{SEP}{OPEN}response{SEP}" if thinking else ""
    text += f"{content}{CLOSE}response{SEP}"
    calls = []
    for index in range(random.randrange(4)):
        name, arguments = random.choice(NAMES), {}
        text += f'{"" if index else OPEN + "tools" + SEP}{OPEN}call tool="{attribute(name)}" index="{index + 1}"{SEP}'
        for key in random.sample(KEYS, random.randrange(4)):
            kind, body, arguments[key] = draw_value(random)
            text += f'{OPEN}argument key="{attribute(key)}" type="{kind}"{SEP}{body}{CLOSE}argument{SEP}'
        text += f"{CLOSE}call{SEP}"
        calls.append((name, json.dumps(arguments, ensure_ascii=False)))
    return f"{text}{f'{CLOSE}tools{SEP}' if calls else ''}{END}", thinking, (reasoning, content, calls)


def attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;")


def streamed(read: Any, token_ids: list[int], **given: Any) -> Answered:
    """The answer, read token by token."""
    return read(token_ids, steps=[[token_id] for token_id in token_ids], **given)  # type: ignore[no-any-return]


def test_well_formed_answers_are_read_alike() -> None:
    """Reasoning, content, names and the text of the arguments; collected, streamed by tokens and by twenty tokens."""
    random = Random(11)
    for _ in range(NUM_ANSWERS):
        text, thinking, meant = draw(random)
        token_ids = write(text)
        assert meant == ours(token_ids, thinking=thinking), text
        assert meant == theirs(token_ids[:-1], thinking=thinking), text
        if not meant[2]:
            assert meant == theirs(token_ids[:-1], thinking=thinking, tools=False), text
        for size in (1, 20):
            steps = [token_ids[start : start + size] for start in range(0, len(token_ids), size)]
            assert meant == ours(token_ids, thinking=thinking, steps=steps), text
            steps = [[token_id for token_id in step if token_id != token_ids[-1]] for step in steps]
            assert meant == theirs(token_ids, thinking=thinking, steps=steps), text


@pytest.mark.parametrize("cut", ["Let me thi", f"Hm{CLOSE}think{SEP}{OPEN}response{SEP}The ans", f"Hm{CLOSE}think{SEP}", "CALL"])
def test_truncated_answers_are_read_alike(cut: str) -> None:
    """In thinking, in content, between channels, in an argument: half a call is none."""
    opener = f'{OPEN}argument key="b" type="string"{SEP}'
    cut = f"Hm{CLOSE}think{SEP}{OPEN}response{SEP}{call(1, NUMBER)}{opener}half" if cut == "CALL" else cut
    token_ids = write(cut)
    assert ours(token_ids, thinking=True) == theirs(token_ids, thinking=True) == streamed(theirs, token_ids, thinking=True)


@dataclass
class Difference:
    """`why` we differ. In `text`, `@` is the close of an argument in ordinary tokens. None: as collected."""

    why: str
    text: str
    expected: Answered
    collected: Answered
    streamed: Answered | None = None
    thinking: bool = False


RAW_MARKER = f"{CLOSE}argument{SEP}"
CALLED = [("f", '{"a": 1}')]
DIFFERENCES = [
    Difference(
        "a string holds the text of a marker: we see that its tokens are ordinary",
        answer(f'{OPEN}argument key="a" type="string"{SEP}x@y{CLOSE}argument{SEP}'),
        ("", "", [("f", json.dumps({"a": f"x{RAW_MARKER}y"}))]),
        ("", "", [("f", '{"a": "x"}')]),
    ),
    Difference(
        "content holds the text of a marker, as before",
        f"Close it with @.{CLOSE}response{SEP}{END}",
        ("", f"Close it with {RAW_MARKER}.", []),
        ("", f"Close it with {RAW_MARKER}.", []),
    ),
    Difference(
        "all arguments as one JSON body: a form that prompts have, too",
        answer(f'{OPEN}json type="object"{SEP}{{"a": 1}}{CLOSE}json{SEP}'),
        ("", "", CALLED),
        ("", "", [("f", "{}")]),
    ),
    Difference(
        "content of blanks only beside a call: it is what the model said, and what was streamed",
        f"\n{answer(NUMBER)}",
        ("", "\n", CALLED),
        ("", "", CALLED),
        ("", "\n", CALLED),
    ),
    Difference(
        "numbers as they were written: floating point would change them",
        answer(NUMBER.replace("1", "12345678901234567.50")),
        ("", "", [("f", '{"a": 12345678901234567.50}')]),
        ("", "", [("f", '{"a": 1.2345678901234568e+16}')]),
    ),
    Difference(
        "the same key twice: the first has been sent",
        answer(NUMBER + NUMBER.replace("1", "2")),
        ("", "", CALLED),
        ("", "", [("f", '{"a": 2}')]),
    ),
    Difference(
        "an object that ends too early: repaired, as it was streamed",
        answer(f'{OPEN}argument key="a" type="object"{SEP}{{"b": [1, "x"{CLOSE}argument{SEP}'),
        ("", "", [("f", '{"a": {"b": [1, "x"]}}')]),
        ("", "", [("f", json.dumps({"a": '{"b": [1, "x"'}))]),
    ),
    Difference(
        "the message is closed and the response is not: the marker is no content",
        f"Hello{END}",
        ("", "Hello", []),
        ("", "Hello", []),
        ("", f"Hello{CLOSE}message{SEP}", []),
    ),
    Difference(
        "thinking is not closed before tools: the call is there",
        f"Hm{call(1, NUMBER)}{CLOSE}call{SEP}{CLOSE}tools{SEP}{END}",
        ("Hm", "", CALLED),
        (f"Hm{call(1, NUMBER)}{CLOSE}call{SEP}{CLOSE}tools{SEP}{CLOSE}message{SEP}", "", []),
        thinking=True,
    ),
    Difference(
        "thinking is not closed before the response: each text is where it belongs",
        f"Hm{OPEN}response{SEP}Yes{CLOSE}response{SEP}{END}",
        ("Hm", "Yes", []),
        ("", "Yes", []),
        (f"Hm{OPEN}response{SEP}Yes{CLOSE}response{SEP}{CLOSE}message{SEP}", "", []),
        thinking=True,
    ),
    Difference(
        "answered without a marker of thinking: an answer is worth more than its place",
        f"Yes{CLOSE}response{SEP}{END}",
        ("Yes", "Yes", []),
        (f"Yes{CLOSE}response{SEP}{CLOSE}message{SEP}", "", []),
        thinking=True,
    ),
    Difference(
        "a second tools channel: no call is lost",
        f'{answer(NUMBER).removesuffix(END)}{OPEN}tools{SEP}{OPEN}call tool="g" index="2"{SEP}{CLOSE}call{SEP}{CLOSE}tools{SEP}{END}',
        ("", "", [*CALLED, ("g", "{}")]),
        ("", "", CALLED),
        ("", "", [*CALLED, ("g", "{}")]),
    ),
    Difference(
        "a call without its closing marker before the next: both are there",
        f'{CLOSE}response{SEP}{call(1, NUMBER)}{OPEN}call tool="g" index="2"{SEP}{CLOSE}call{SEP}{CLOSE}tools{SEP}{END}',
        ("", "", [*CALLED, ("g", "{}")]),
        ("", "", CALLED),
    ),
]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.why) for case in DIFFERENCES])
def test_where_we_differ(case: Difference) -> None:
    """Both sides, so that a change in vLLM is noticed. Ours is the same streamed and collected."""
    token_ids = write(case.text, spelled=RAW_MARKER)
    assert case.expected == ours(token_ids, thinking=case.thinking) == streamed(ours, token_ids, thinking=case.thinking)
    token_ids.pop()
    assert case.collected == theirs(token_ids, thinking=case.thinking)
    assert (case.streamed or case.collected) == streamed(theirs, token_ids, thinking=case.thinking)
