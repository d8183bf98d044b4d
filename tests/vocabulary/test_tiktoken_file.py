from __future__ import annotations

import base64
import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.vocabulary.tiktoken_file import KimiVocabulary, chunks

SEEDED = settings(derandomize=True, deadline=None, max_examples=60)


def test_special_slots_follow_the_base_vocabulary(synthetic_k3: KimiVocabulary) -> None:
    expected = {
        "[BOS]": 163584,
        "[EOS]": 163585,
        "<|end_of_msg|>": 163586,
        "<|open|>": 163587,
        "<|close|>": 163588,
        "<|sep|>": 163589,
        "[EOT]": 163593,
        "<|media_begin|>": 163602,
        "<|media_content|>": 163603,
        "<|media_end|>": 163604,
        "<|media_pad|>": 163605,
        "<osagent_mode>": 163649,
        "[UNK]": 163838,
        "[PAD]": 163839,
    }
    assert expected == {name: synthetic_k3.control[name] for name in expected}
    assert set(range(163_584, 163_840)) == synthetic_k3.control_ids
    assert 163_840 == synthetic_k3.size


@pytest.mark.parametrize(
    ("text", "token_ids"),
    [
        ("think", [39964]),
        ("response", [12092]),
        ("tools", [25385]),
        ("call", [10257]),
        ("argument", [47185]),
        ("message", [2778]),
        ("Hi", [18699]),
        (
            "北京 na\u00efve 👩\u200d🚀 e\u0301\n\n\t123456",
            [3372, 7915, 44187, 367, 130732, 102, 67963, 5885, 40101, 350, 37484, 382, 197, 6694, 12972],
        ),
    ],
)
def test_known_ids(k3: KimiVocabulary, text: str, token_ids: list[int]) -> None:
    assert token_ids == k3.encode(text)


@pytest.mark.parametrize("char", ["x", " ", "北", "\n"])
def test_long_runs_are_encoded_in_pieces(k3: KimiVocabulary, char: str) -> None:
    expected = k3.encode(char * 25_000) * 2 + k3.encode(char * 10_000)
    assert expected == k3.encode(char * 60_000)


def cut_by_counting(text: str) -> list[str]:
    """The same cuts, found one character at a time."""
    cuts = [0]
    run = 0
    for position, char in enumerate(text):
        if position % 400_000 == 0:
            run = 0
            cuts += [position] * (position > 0)
        run = run + 1 if run and char.isspace() == text[position - 1].isspace() else 1
        if run > 25_000:
            run = 1
            cuts.append(position)
    return [text[begin:end] for begin, end in itertools.pairwise([*cuts, len(text)])]


@pytest.mark.parametrize(
    "runs",
    [
        [("x", 25_000)],
        [("x", 25_001)],
        [("x", 25_000), (" ", 1), ("y", 25_000)],
        [("a", 3), (" ", 50_001), ("b", 24_999), ("\n", 2)],
        [(" ", 399_990), ("x", 30_000)],
        [("x ", 200_100)],
    ],
)
def test_chunks(runs: list[tuple[str, int]]) -> None:
    text = "".join(char * times for char, times in runs)
    assert cut_by_counting(text) == list(chunks(text))


@SEEDED
@given(text=st.text(max_size=50))
def test_short_text_is_one_chunk(text: str) -> None:
    assert [text] == list(chunks(text))


def write(path: Path, lines: list[bytes]) -> Path:
    path.write_bytes(b"\n".join(lines))
    return path


def test_a_table_of_another_size_is_refused(tmp_path: Path) -> None:
    lines = [base64.b64encode(bytes([value])) + b" %d" % value for value in range(256)]
    with pytest.raises(ValueError, match="256 merges where K3's base vocabulary has 163584"):
        KimiVocabulary.from_file(write(tmp_path / "tiktoken.model", lines))


def test_a_rank_beyond_the_base_vocabulary_is_refused(tmp_path: Path, merge_table: bytes) -> None:
    lines = merge_table.splitlines()
    lines[-1] = lines[-1].replace(b" 163583", b" 163587")
    with pytest.raises(ValueError, match="rank `163587` is outside"):
        KimiVocabulary.from_file(write(tmp_path / "tiktoken.model", lines))


@pytest.mark.parametrize("line", [b"no-base64! 0", b"YQ==", b"YQ== x", b"YQ== 1 2"])
def test_a_malformed_line_is_named(tmp_path: Path, line: bytes) -> None:
    with pytest.raises(ValueError, match="line 2 is not a base64 piece and its rank"):
        KimiVocabulary.from_file(write(tmp_path / "tiktoken.model", [b"YQ== 0", line]))
