"""The checkpoint that `k3-gateway demo-model` writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.demo_model.tokenizer import CONTROL_TOKENS
from server.vocabulary.load import load

END_OF_MESSAGE = 49155

# Ids of SmolLM2's published tokenizer, as llama.cpp gives them for the same file.
KNOWN_IDS = {
    "Hello world! It's 12345": [19556, 905, 17, 657, 506, 216, 33, 34, 35, 36, 37],
    " leading": [2899],
    "a\r\nb   c": [81, 201, 198, 82, 256, 265],
    "<|open|>x": [44, 108, 6465, 108, 46, 104],
}


def _read(folder: Path, name: str) -> dict[str, object]:
    content: dict[str, object] = json.loads((folder / name).read_text(encoding="utf-8"))
    return content


def test_control_tokens_have_the_ids_behind_the_base_vocabulary(demo_model: Path) -> None:
    control = load(demo_model).control
    assert {name: 49152 + place for place, name in enumerate(CONTROL_TOKENS)}.items() <= control.items()
    assert [49152, 49153, 49154, END_OF_MESSAGE] == [
        control[name] for name in ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")
    ]


@pytest.mark.parametrize("text", KNOWN_IDS)
def test_text_has_the_ids_of_the_published_tokenizer(demo_model: Path, text: str) -> None:
    ids = load(demo_model).encode(text)
    assert KNOWN_IDS[text] == ids[: len(KNOWN_IDS[text])]


def test_any_text_survives_and_is_never_a_control_token(demo_model: Path) -> None:
    """But for characters with a byte that SmolLM2 has no token for: control characters, and planes that Unicode hardly uses."""
    vocabulary = load(demo_model)
    known = {piece for piece in vocabulary.pieces if len(piece) == 1}
    text = st.text(st.characters(exclude_categories=["Cs"]).filter(lambda char: all(bytes([b]) in known for b in char.encode())))
    pieces = st.one_of(text, st.sampled_from([*vocabulary.control, "<|", "|>", "<", "\n", "  ", "½", "🙂", "\u0301"]))

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(pieces, max_size=6).map("".join))
    def survives(text: str) -> None:
        ids = vocabulary.encode(text)
        assert text == vocabulary.decode(ids)
        assert vocabulary.control_ids.isdisjoint(ids)

    survives()


def test_an_answer_ends_at_end_of_msg_everywhere(demo_model: Path) -> None:
    config, generation = _read(demo_model, "config.json"), _read(demo_model, "generation_config.json")
    assert (END_OF_MESSAGE, END_OF_MESSAGE) == (config["eos_token_id"], generation["eos_token_id"])
    assert _read(demo_model, "tokenizer_config.json")["eos_token"] == "<|end_of_msg|>"


def test_vocabulary_configuration_and_weights_have_one_size(demo_model: Path) -> None:
    with (demo_model / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    size = load(demo_model).size
    assert (size, size) == (_read(demo_model, "config.json")["vocab_size"], header["model.embed_tokens.weight"]["shape"][0])
    assert {"BF16"} == {tensor["dtype"] for name, tensor in header.items() if name != "__metadata__"}


def test_everybody_may_read_the_files(demo_model: Path) -> None:
    assert {0o644} == {file.stat().st_mode & 0o777 for file in demo_model.iterdir()}


def test_weights_still_know_what_the_base_model_knows(demo_model: Path) -> None:
    """A wrong order of rows in queries and keys, or a wrong scale, makes the next word nonsense."""
    torch = pytest.importorskip("torch")
    from demo.batch import batch
    from demo.model import AdaptedLlama
    from demo.rows import Branch, Row

    vocabulary = load(demo_model)
    [expected] = vocabulary.encode(" Paris")
    ids = vocabulary.encode("Germany: Berlin. Italy: Rome. The capital of France is the city of")
    model = AdaptedLlama(demo_model, len(CONTROL_TOKENS), rank=1, scale=1.0)
    with torch.no_grad():
        hidden = model.hidden(batch([Row(ids, [Branch([], [])])]))
        logits = hidden[len(ids) - 1].float() @ model.embedding.float().T
    assert expected == int(logits.argmax())
