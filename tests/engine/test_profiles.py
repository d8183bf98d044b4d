from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from server.engine.profiles import ProfileError, load_profile, profile_names

GOOD = {"name": "mine", "engine": {"max_model_len": 100}, "environment": {"A": "1"}}


def write(folder: Path, content: object) -> str:
    path = folder / "mine.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", profile_names())
def test_a_shipped_profile_is_whole_and_named_as_its_file(name: str) -> None:
    profile = load_profile(name)
    assert name == profile.name
    assert profile.description
    assert profile.hardware
    assert {
        "enable_prefix_caching": True,
        "scheduling_policy": "priority",
        "enable_log_requests": False,
    }.items() <= profile.engine.items()


def test_the_cpu_profile_prefills_every_prompt_in_one_step() -> None:
    engine = load_profile("cpu-demo").engine
    tokens_of_a_running_request = 1 + engine["speculative_config"]["num_speculative_tokens"]
    assert engine["enable_chunked_prefill"] is False
    assert engine["max_num_batched_tokens"] >= engine["max_model_len"] + engine["max_num_seqs"] * tokens_of_a_running_request
    assert engine["block_size"] % 32 == 0


def test_a_file_is_a_profile_too(tmp_path: Path) -> None:
    profile = load_profile(write(tmp_path, GOOD))
    assert ("mine", {"max_model_len": 100}, {"A": "1"}, "") == (
        profile.name,
        profile.engine,
        profile.environment,
        profile.hardware,
    )


def test_an_override_replaces_a_whole_argument_and_leaves_the_profile_alone() -> None:
    before = dict(load_profile("cpu-demo").engine)
    changed = load_profile("cpu-demo", {"speculative_config": None, "seed": 1}).engine
    assert {**before, "speculative_config": None, "seed": 1} == changed
    assert before == load_profile("cpu-demo").engine


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(ProfileError, match=r"`gpu-dream`.*cpu-demo"):
        load_profile("gpu-dream")


@pytest.mark.parametrize("name", ["../profiles", "a/b", ""])
def test_a_name_is_not_a_way_out_of_the_folder(name: str) -> None:
    with pytest.raises(ProfileError):
        load_profile(name)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("- a list", "no mapping"),
        ("a: [", "can't be read"),
        ({**GOOD, "enviroment": {}}, "unknown field `enviroment`"),
        ({"name": "mine"}, "has no `engine`"),
        ({**GOOD, "engine": []}, "`engine` .* must be a dict"),
        ({**GOOD, "environment": {"A": 1}}, r"`environment\.A` .* in quotes"),
        ({**GOOD, "engine": {"model": "x"}}, r"`engine\.model`"),
    ],
)
def test_a_mistake_in_a_file_is_named(tmp_path: Path, content: object, words: str) -> None:
    with pytest.raises(ProfileError, match=words):
        load_profile(write(tmp_path, content))


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ProfileError, match=r"nowhere\.yaml"):
        load_profile("nowhere.yaml")
