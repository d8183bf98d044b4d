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
    for said in ("description", "hardware", "source", "date", "verified", "requires"):
        assert getattr(profile, said), said
    assert {
        "enable_prefix_caching": True,
        "scheduling_policy": "priority",
        "max_num_queued_reqs": 1024,
        "enable_log_requests": False,
    }.items() <= profile.engine.items()
    assert "xgrammar" == profile.engine["structured_outputs_config"]["backend"]
    assert ("speculative_config" in profile.engine) == ("per_request_spec_decode_metrics" in profile.engine)


@pytest.mark.parametrize("name", profile_names())
def test_who_has_run_a_profile_is_said_without_doubt(name: str) -> None:
    verified = load_profile(name).verified
    assert "Run by us" in verified if name == "cpu-demo" else "Not run by us" in verified


def test_every_machine_that_holds_kimi_k3_has_its_profiles() -> None:
    variants = ["", "-dspark", "-dspark-adaptive", "-dspark8"]
    b300, gb300 = [f"kimi-k3-b300{variant}" for variant in variants], [f"kimi-k3-gb300{variant}" for variant in variants]
    others = ["kimi-k3-h200-2node", "kimi-k3-longcontext-dcp", "kimi-k3-mi355x", "kimi-k3-mi355x-dspark"]
    assert ["cpu-demo", "kimi-k3-b200-2node", *b300, *gb300, *others] == profile_names()


def test_profiles_lie_where_deployments_look_for_them() -> None:
    folder = Path(__file__).resolve().parents[2] / "deploy" / "profiles"
    assert profile_names() == sorted(path.stem for path in folder.glob("[!_]*.yaml"))


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
        ({**GOOD, "enviroment": {}}, "`enviroment` is no field; known are: name"),
        ({"name": "mine"}, "`engine` is missing"),
        ({**GOOD, "engine": []}, "`engine` must be a dict"),
        ({**GOOD, "environment": {"A": 1}}, r"`environment\.A` must be a string: put it in quotes"),
        ({**GOOD, "engine": {"model": "x"}}, r"`engine\.model`"),
        ({**GOOD, "extends": 5}, r"`extends` must be a str or a list"),
        ({**GOOD, "extends": "kimi-k4"}, r"extends `kimi-k4`, which is none; known are: cpu-demo"),
        ({**GOOD, "extends": "../profiles/cpu-demo"}, r"extends `\.\./profiles/cpu-demo`, which is none"),
        ({**GOOD, "extends": "nowhere.yaml"}, r"nowhere\.yaml` can't be read"),
        ({**GOOD, "extends": "mine.yaml"}, r"extends itself: mine -> mine"),
        ({**GOOD, "requires": {"vendor": "intel", "memory_gib": 1}}, r"`requires\.vendor` must be one of: nvidia, amd, cpu"),
        ({**GOOD, "requires": {"vendor": "amd"}}, r"`requires\.memory_gib` must be a number above 0"),
        (
            {**GOOD, "requires": {"vendor": "amd", "memory_gib": 1, "devices": 0}},
            r"`requires\.devices` must be a whole number above 0",
        ),
        (
            {**GOOD, "requires": {"vendor": "amd", "memory_gib": 1, "nodes": True}},
            r"`requires\.nodes` must be a whole number above 0",
        ),
        ({**GOOD, "requires": {"vendor": "amd", "memory_gib": 1, "gpus": 8}}, r"`requires\.gpus` is unknown; known are: vendor"),
        ({**GOOD, "requires": {"vendor": "amd", "memory_gib": 1, "names": "B300"}}, r"`requires\.names` must be a list"),
        ({**GOOD, "answer_bounds": {"items": -1}}, r"`answer_bounds\.items` must be a whole number"),
    ],
)
def test_a_mistake_in_a_file_is_named(tmp_path: Path, content: object, words: str) -> None:
    with pytest.raises(ProfileError, match=words):
        load_profile(write(tmp_path, content))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"name": 5, "engin": {}, "environment": []}, ["`name` must be", "`engin` is no field", "`environment` must be"]),
        (
            {
                "environment": {"A": 1, "B": 2},
                "answer_bounds": {"items": -1},
                "requires": {"vendor": "intel"},
                "engine": {"model": "x"},
            },
            [
                "`name` is missing",
                "`environment.A`",
                "`environment.B`",
                "`answer_bounds.items`",
                "`engine.model`",
                "`requires.vendor`",
            ],
        ),
    ],
)
def test_mistakes_in_a_file_are_told_together(tmp_path: Path, content: object, words: list[str]) -> None:
    path = write(tmp_path, content)
    with pytest.raises(ProfileError) as refused:
        load_profile(path)
    assert 1 == str(refused.value).count(path)
    assert [] == [one for one in words if one not in str(refused.value)]


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ProfileError, match=r"nowhere\.yaml"):
        load_profile("nowhere.yaml")


def test_what_extends_another_is_merged_at_every_depth(tmp_path: Path) -> None:
    below = {
        "name": "below",
        "description": "of the one below only",
        "verified": "of the one below only",
        "warning": "take care",
        "engine": {"a": {"x": 1, "y": {"z": [1, 2]}}, "b": 2, "gone": 3},
        "environment": {"A": "1", "B": "1"},
    }
    (tmp_path / "below.yaml").write_text(yaml.safe_dump(below), encoding="utf-8")
    above = {
        "name": "mine",
        "extends": "below.yaml",
        "engine": {"a": {"y": {"z": [3], "w": 4}}, "gone": None, "new": 5},
        "environment": {"B": None, "C": "2"},
    }
    profile = load_profile(write(tmp_path, above))
    assert {"a": {"x": 1, "y": {"z": [3], "w": 4}}, "b": 2, "new": 5} == profile.engine
    assert {"A": "1", "C": "2"} == profile.environment
    assert ("mine", "", "", "take care") == (profile.name, profile.description, profile.verified, profile.warning)


def test_of_several_that_are_extended_the_later_one_wins(tmp_path: Path) -> None:
    for name, engine in (("one", {"a": 1, "b": 1, "c": 1}), ("two", {"b": 2, "c": 2})):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({"name": name, "engine": engine}), encoding="utf-8")
    profile = load_profile(write(tmp_path, {"name": "mine", "extends": ["one.yaml", "two.yaml"], "engine": {"c": 3}}))
    assert {"a": 1, "b": 2, "c": 3} == profile.engine


def test_a_profile_of_ones_own_extends_a_shipped_one(tmp_path: Path) -> None:
    content = {"name": "mine", "extends": "kimi-k3-b300", "engine": {"max_model_len": 262144, "attention_config": None}}
    profile, shipped = load_profile(write(tmp_path, content)), load_profile("kimi-k3-b300")
    inherited = {name: value for name, value in shipped.engine.items() if name != "attention_config"}
    assert {**inherited, "max_model_len": 262144} == profile.engine
    assert (shipped.requires, shipped.source, "") == (profile.requires, profile.source, profile.verified)


def test_a_long_way_round_is_found_to_be_a_circle(tmp_path: Path) -> None:
    for name, extended in (("a", "b.yaml"), ("b", "c.yaml"), ("c", "a.yaml")):
        content = {"name": name, "extends": extended, "engine": {}}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.raises(ProfileError, match="extends itself: a -> b -> c -> a"):
        load_profile(str(tmp_path / "a.yaml"))


@pytest.mark.parametrize("name", ["_kimi-k3", "_dspark"])
def test_what_is_there_to_be_extended_is_not_run(name: str) -> None:
    with pytest.raises(ProfileError, match=f"there is no engine profile `{name}`"):
        load_profile(name)


def test_the_draft_model_may_lie_in_a_folder() -> None:
    shipped = load_profile("kimi-k3-b300-dspark").engine["speculative_config"]
    moved = load_profile("kimi-k3-b300-dspark", draft_model_path=Path("/models/draft")).engine["speculative_config"]
    assert {**shipped, "model": "/models/draft"} == moved
    for name, overrides in (("kimi-k3-b300", {}), ("cpu-demo", {}), ("kimi-k3-b300-dspark", {"speculative_config": None})):
        with pytest.raises(ProfileError, match=f"`engine.draft_model_path` .*`{name}` has no draft model"):
            load_profile(name, overrides, Path("/models/draft"))


def test_other_machines_have_a_rank_and_the_address_of_the_first() -> None:
    profile = load_profile("kimi-k3-b200-2node", {"master_addr": "10.0.0.1"})
    assert (2, {**profile.engine, "node_rank": 1}) == (profile.num_nodes, profile.on_node(1, None).engine)
    assert "10.0.0.2" == profile.on_node(1, "10.0.0.2").engine["master_addr"]
    for rank in (-1, 2):
        with pytest.raises(ProfileError, match=f"nodes 0 to 1; there is no node {rank}"):
            profile.on_node(rank, None)


def test_an_engine_of_several_machines_needs_an_address_to_meet_at() -> None:
    load_profile("kimi-k3-b200-2node", {"master_addr": "10.0.0.1"}).check_nodes()
    load_profile("kimi-k3-b300").check_nodes()
    with pytest.raises(ProfileError, match=r"runs on 2 machines.*master_addr: ADDRESS.*engine-node"):
        load_profile("kimi-k3-b200-2node").check_nodes()
