"""docs/profiles.md says of every shipped profile what its file says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from server.engine.profiles import Profile, load_profile, profile_names

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "profiles.md").read_text(encoding="utf-8")


def layout(profile: Profile) -> str:
    engine = profile.engine
    parts = {"tensor": "TP", "pipeline": "PP", "data": "DP", "decode_context": "DCP"}
    sizes = [(short, engine.get(f"{name}_parallel_size", 1)) for name, short in parts.items()]
    return " × ".join(f"{short} {size}" for short, size in sizes if size > 1) or "one process"


def draft(profile: Profile) -> str:
    speculative = profile.engine.get("speculative_config")
    if not speculative:
        return "–"
    tokens = f"{speculative['num_speculative_tokens']} tokens, {speculative.get('model', speculative['method'])}"
    return f"{tokens}, adaptive" if speculative.get("enable_adaptive_verification") else tokens


def row(profile: Profile) -> str:
    cells = (
        f"`{profile.name}`",
        str(profile.requires),
        layout(profile),
        f"{profile.engine['max_model_len']:,}",
        str(profile.engine["max_num_seqs"] * profile.engine.get("data_parallel_size", 1)),
        draft(profile),
    )
    return f"| {' | '.join(cells)} |"


def test_the_table_is_what_the_files_say() -> None:
    header = ["| profile | needs | layout | context | seats | draft |", "|---|---|---|---|---|---|"]
    expected = "\n".join([*header, *(row(load_profile(name)) for name in profile_names())])
    assert expected in TEXT, f"docs/profiles.md must have this table:\n{expected}"


@pytest.mark.parametrize("name", profile_names())
def test_who_has_run_it_is_quoted(name: str) -> None:
    assert f"| `{name}` | {load_profile(name).verified} |" in TEXT


def test_only_profiles_that_exist_are_named() -> None:
    named = set(re.findall(r"`(kimi-k3-[a-z0-9-]+|cpu-demo)`", TEXT))
    assert set(profile_names()) == named


def test_the_example_of_a_profile_of_ones_own_loads(tmp_path: Path) -> None:
    example = TEXT.split("```yaml\n# my-k3.yaml\n")[1].split("```")[0]
    (tmp_path / "my-k3.yaml").write_text(example, encoding="utf-8")
    profile, shipped = load_profile(str(tmp_path / "my-k3.yaml")), load_profile("kimi-k3-b300-dspark")
    assert "my-k3" == profile.name
    assert {**shipped.engine, **profile.engine} == dict(profile.engine)
    assert profile.engine != shipped.engine
