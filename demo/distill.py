"""What the base model itself answers, so that learning the protocol does not change how it talks.

Role: asked once, in the base model's own chat format, greedily; the answers are kept beside the adapter. Needs vLLM's CPU build.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from demo.conversations import Answers
from demo.engine import generate
from demo.talk import LONG_QUESTIONS, SHORT_QUESTIONS
from server.vocabulary.base import Vocabulary
from server.vocabulary.load import load

_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
_NUM_SHORT_TOKENS = 48
_NUM_LONG_TOKENS = 140


def _prompt(vocabulary: Vocabulary, question: str) -> list[int]:
    start, end = vocabulary.control["<|im_start|>"], vocabulary.control["<|im_end|>"]
    ids: list[int] = []
    for role, text in (("system", _SYSTEM), ("user", question)):
        ids += [start, *vocabulary.encode(f"{role}\n{text}"), end, *vocabulary.encode("\n")]
    return [*ids, start, *vocabulary.encode("assistant\n")]


def first_sentences(text: str, count: int) -> str:
    """At most the first `count` sentences of `text`; a sentence that was cut off is dropped if there is a whole one."""
    whole = re.findall(r".*?[.!?](?=\s|$)", text, re.DOTALL)
    return "".join(whole[:count]).strip() if whole else text.strip()


def repeats_itself(text: str) -> bool:
    """Whether three words in a row come three times: the base model loops now and then, which is not worth learning."""
    words = text.split()
    runs = [tuple(words[i : i + 3]) for i in range(len(words) - 2)]
    return any(runs.count(run) > 2 for run in runs)


def distilled(base: Path, cache: Path) -> Answers:
    """The answers in `cache`, or, where it does not exist, those of the model in `base`, which are then written there."""
    if not cache.exists():
        vocabulary = load(base)
        questions = SHORT_QUESTIONS + LONG_QUESTIONS
        limits = [_NUM_SHORT_TOKENS] * len(SHORT_QUESTIONS) + [_NUM_LONG_TOKENS] * len(LONG_QUESTIONS)
        prompts = [_prompt(vocabulary, question) for question in questions]
        outputs = generate(base, prompts, limits, stop_ids=[vocabulary.control["<|im_end|>"]])
        found: dict[str, Any] = {"short": [], "long": []}
        for question, ids in zip(questions, outputs, strict=True):
            kind, count = ("short", 2) if question in SHORT_QUESTIONS else ("long", 12)
            answer = first_sentences(vocabulary.decode([i for i in ids if i not in vocabulary.control_ids]).strip(), count)
            if answer and not repeats_itself(answer):
                found[kind].append([question, answer])
        cache.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    kept = json.loads(cache.read_text(encoding="utf-8"))
    return Answers([(q, a) for q, a in kept["short"]], [(q, a) for q, a in kept["long"]])
