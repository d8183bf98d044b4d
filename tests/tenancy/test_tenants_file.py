"""Files of tenants: what is read, and how mistakes are named."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.sections import BudgetSettings, LimitSettings, TenantSettings
from server.tenancy.tenants_file import TenantsFileError, parse_tenants, read_tenants

WHOLE = """\
tenants:
  acme:
    weight: 4
    models: [kimi-k3]
    limits: {requests_per_minute: 600, input_tokens_per_minute: 2_000_000}
    budget: {tokens_per_day: 50_000_000, usd_per_month: 900.10}
    cache_group: acme
  b: {}
"""
ACME = TenantSettings(
    weight=4,
    models=["kimi-k3"],
    limits=LimitSettings(requests_per_minute=600, input_tokens_per_minute=2_000_000),
    budget=BudgetSettings(tokens_per_day=50_000_000, usd_per_month=Decimal("900.1")),
    cache_group="acme",
)


def test_tenants_are_read_under_their_section_or_alone() -> None:
    alone = "\n".join(line[2:] for line in WHOLE.splitlines()[1:])

    assert {"acme": ACME, "b": TenantSettings()} == parse_tenants(WHOLE, ["kimi-k3"])
    assert {"acme": ACME, "b": TenantSettings()} == parse_tenants(alone)


def test_json_is_read_whatever_it_is_indented_with(tmp_path: Path) -> None:
    path = tmp_path / "tenants.json"
    for indent in (None, 2, "\t"):
        path.write_text(json.dumps({"tenants": {"acme": ACME.model_dump(mode="json"), "b": {}}}, indent=indent))
        assert {"acme": ACME, "b": TenantSettings()} == read_tenants(path, {"kimi-k3"})


def test_what_tenants_share_can_be_written_once() -> None:
    text = """\
a: {limits: &usual {requests_per_minute: 60, concurrent_requests: 4}}
b: {limits: *usual}
c: {limits: {<<: *usual, concurrent_requests: 8}}
"""
    usual = LimitSettings(requests_per_minute=60, concurrent_requests=4)
    more = LimitSettings(requests_per_minute=60, concurrent_requests=8)
    assert {"a": usual, "b": usual, "c": more} == {name: of.limits for name, of in parse_tenants(text).items()}


MISTAKES = {
    "every mistake": (
        """\
tenants:
  acme:
    weight: 0
    wieght: 2
    limits:
      requests_per_minute: many
      requests_per_second: 1
    models: [kimi-k3, gpt-9]
  acme:
    weight: 1
  "b c": {budget: {usd_per_day: 0.00000000001}}
  d: {suspended: maybe, models: [x], budget: {usd_per_month: -1}}
""",
        [
            "line 3: tenants.acme.weight: `0`: Input should be greater than or equal to 0.01",
            "line 4: tenants.acme.wieght: there is no such setting; settings here are: weight, models, limits, budget",
            "line 6: tenants.acme.limits.requests_per_minute: `many`: Input should be a valid integer",
            "line 7: tenants.acme.limits.requests_per_second: there is no such setting; settings here are: requests_per_minute, ",
            "line 8: tenants.acme.models[1]: `gpt-9`: there is no such model; models are: kimi-k2, kimi-k3",
            "line 9: tenants.acme: stands here and in line 2; leave one out",
            "line 11: tenants.b c: is no name of a tenant; use at most 64 letters",
            "line 11: tenants.b c.budget.usd_per_day: `1e-11`: Decimal input should have no more than 9 decimal places",
            "line 12: tenants.d.budget.usd_per_month: `-1`: Input should be greater than or equal to 0",
            "line 12: tenants.d.models[0]: `x`: there is no such model",
            "line 12: tenants.d.suspended: `maybe`: Input should be a valid boolean",
        ],
    ),
    "keys that YAML takes for something else": (
        "no: {}\n7: {}\n2024-01-01: {}\n? [a]\n: {}\n",
        [
            "line 1: no: is not read as text; put the name in quotes",
            "line 2: 7: is not read as text",
            "line 3: 2024-01-01: is not read as text",
            "line 4: ?: a key must be text",
        ],
    ),
    "amounts of money that nobody has": (
        f"a: {{budget: {{usd_per_day: .inf, usd_per_month: .nan}}}}\nb: {{budget: {{usd_per_day: {'9' * 50}}}}}\n",
        [
            "line 1: a.budget.usd_per_day: `inf`: Input should be a finite number",
            "line 1: a.budget.usd_per_month: `nan`: Input should be a finite number",
            "line 2: b.budget.usd_per_day: `99999",
        ],
    ),
    "truth values for numbers": (
        "a: {weight: yes, limits: {requests_per_minute: on}, suspended: true, cache_group: no, media: {remote_urls: off}}\n",
        [
            "line 1: a.cache_group: `false`: is a truth value to YAML; give a number, or put text in quotes",
            "line 1: a.limits.requests_per_minute: `true`: is a truth value",
            "line 1: a.media.remote_urls: `false`: is a truth value",
            "line 1: a.weight: `true`: is a truth value",
        ],
    ),
    "scalars that are none": (
        f"a: {{weight: !!int x}}\nb: {{weight: {'9' * 5000}}}\nc: {{weight: 2024-99-99}}\nd: {{weight: !thing 1}}\ne: {{weight: .nan}}\n",
        [
            "line 1: a.weight: `x`: invalid literal",
            "line 2: b.weight: `9999",
            "line 3: c.weight: `2024-99-99`: month must be in 1..12",
            "line 4: d.weight: `1`: could not determine a constructor for the tag '!thing'",
            "line 5: e.weight: `nan`: Input should be less than",
        ],
    ),
    "other shapes": (
        "a: 1\nb: [weight]\nc:\nd: {limits: 5, models: kimi-k3}\n",
        [
            "line 1: a: `1`: must be a mapping of settings, `{}` for none",
            "line 2: b: `[…]`: must be a mapping of settings",
            "line 3: c: `null`: must be a mapping of settings",
            "line 4: d.limits: `5`: must be a mapping of settings",
            "line 4: d.models: `kimi-k3`: Input should be a valid list",
        ],
    ),
    "sections of a configuration": (
        "http: {port: 1}\ntenants: {a: {}}\n",
        ["line 1: http: stands beside `tenants`; tenants go under it, and other sections into other files"],
    ),
    "aliases that turn back": ("a: &a {limits: *a}\n", ["line 1: a.limits: refers to itself"]),
    "mistakes in what is shared": (
        "a: {limits: &x {speed: 1}}\nb:\n  limits: *x\nc:\n  <<: 7\n",
        ["line 1: a.limits.speed: there is no", "line 3: b.limits.speed: there is no", "line 5: c.<<: must be a mapping"],
    ),
    "no YAML": ("a: {}\nb: {\nc: 'x\n", ["line 4: is not YAML: found unexpected end of stream"]),
    "tabs": ("a:\n\tweight: 1\n", ["line 2: is not YAML: found character '\\t' that cannot start any token"]),
    "control characters": ("a: \x00", ["line 1: is not YAML: unacceptable character"]),
    "two documents": ("a: {}\n---\nb: {}\n", ["line 2: is not YAML: but found another document"]),
    "an unknown alias": ("a: *b\n", ["line 1: is not YAML: found undefined alias 'b'"]),
    "nesting": ("[" * 5000, ["line 1: is nested too deeply"]),
    "nothing": ("", ["line 1: must be a mapping of at least one tenant's name to its settings"]),
    "a list": ("- a\n", ["line 1: must be a mapping of at least"]),
    "no tenants": ("\ntenants:\n", ["line 2: tenants: must be a mapping of at least"]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_every_mistake_is_named_with_its_line_and_no_other(name: str) -> None:
    text, expected = MISTAKES[name]
    with pytest.raises(TenantsFileError) as caught:
        parse_tenants(text, ["kimi-k2", "kimi-k3"])

    found = caught.value.mistakes
    assert expected == [mistake[: len(start)] for mistake, start in zip(found, expected, strict=False)]
    assert len(expected) == len(found), found
    assert all(len(mistake) < 300 for mistake in found)


def test_files_that_can_t_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes("a: {}\nb: {} # für\n".encode("latin-1"))
    (tmp_path / "wrong").write_text("a: {weight: 0}\nb: {weight: 0}\n")
    (tmp_path / "huge").write_bytes(b"#" * (16 * 1024 * 1024 + 1))
    expected = {
        "missing": [": can't be read: No such file or directory"],
        "": [": can't be read: Is a directory"],
        "latin": [": line 2: is not UTF-8"],
        "wrong": [f": line {line}: {name}.weight: `0`: Input should be greater" for line, name in ((1, "a"), (2, "b"))],
        "huge": [": is larger than 16 MiB"],
    }
    for name, mistakes in expected.items():
        with pytest.raises(TenantsFileError) as caught:
            read_tenants(tmp_path / name)
        starts = [f"{tmp_path / name}{mistake}" for mistake in mistakes]
        assert starts == [found[: len(start)] for found, start in zip(caught.value.mistakes, starts, strict=True)]


def test_a_thousand_mistakes_are_counted() -> None:
    with pytest.raises(TenantsFileError) as caught:
        parse_tenants("".join(f"t{number}: {{weight: 0}}\n" for number in range(1000)))
    assert 101 == len(caught.value.mistakes)
    assert "and 900 more" == caught.value.mistakes[-1]


def test_documents_that_grow_by_aliases_do_not() -> None:
    doubling = "x0: &x0 {models: [a]}\n" + "".join(f"x{n}: &x{n} {{models: [*x{n - 1}, *x{n - 1}]}}\n" for n in range(1, 60))
    with pytest.raises(TenantsFileError, match=r"line 2: x1\.models"):
        parse_tenants(doubling)


@given(st.text(max_size=200) | st.binary(max_size=100).map(lambda content: content.decode("utf-8", "replace")))
def test_any_text_is_read_or_refused(text: str) -> None:
    outcome: object = None
    try:
        outcome = parse_tenants(text)
    except TenantsFileError as error:
        outcome = error.mistakes
    assert outcome


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True).filter(lambda name: name != "other"),
        st.builds(TenantSettings, weight=st.floats(0.01, 1000), suspended=st.booleans()),
        min_size=1,
    )
)
def test_what_is_written_is_what_is_read(tenants: dict[str, TenantSettings]) -> None:
    text = json.dumps({"tenants": {name: of.model_dump(mode="json") for name, of in tenants.items()}})
    assert tenants == parse_tenants(text)
