"""`docs/api.md` says what the code does, where that can be looked up."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from server import errors
from server.errors import GatewayError
from server.protocol import chat, ranges, reasoning, sampling, sizes, tools
from server.protocol.messages import Message
from server.schemas import check, document, validator

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text()


def section(title: str) -> str:
    """The text under a heading, up to the next one."""
    return re.split(r"\n##+ ", TEXT.partition(f"# {title}\n")[2])[0]


def subclasses(of: type[GatewayError]) -> list[type[GatewayError]]:
    return [of, *(inner for sub in of.__subclasses__() for inner in subclasses(sub))]


@pytest.mark.parametrize("field", chat.FIELDS)
def test_every_field_of_a_request_is_named(field: str) -> None:
    assert f"`{field}`" in section("Request")


@pytest.mark.parametrize("field", Message.__annotations__)
def test_every_field_of_a_message_is_named(field: str) -> None:
    assert f"`{field}`" in section("Messages")


def test_every_effort_is_mapped_as_it_says() -> None:
    names, given = (row.split("|")[2:-2] for row in section("Reasoning").split("\n") if row.startswith(("| effort", "| K3 gets")))
    told = {name.strip(" `"): value.strip(" `") for name, value in zip(names, given, strict=True)}

    assert told == {name: effort or "reasoning off" for name, effort in reasoning._EFFORTS.items()}


def test_every_member_of_thinking_is_named() -> None:
    for name in (*chat.Thinking.__struct_fields__, *reasoning._SWITCHES, "thinking_effort"):
        assert name in section("Reasoning")


@pytest.mark.parametrize("error", [error for error in subclasses(GatewayError) if error.code], ids=lambda error: error.__name__)
def test_every_error_is_listed_with_its_status(error: type[GatewayError]) -> None:
    rows = [row for row in section("Errors").split("\n") if f"`{error.code}`" in row]

    assert error.__module__ == errors.__name__
    assert [str(error.status)] == [row.split("|")[1].strip() for row in rows]


def test_sampling_is_told_for_every_field_that_has_a_rule() -> None:
    for name in (*sampling.FIXED, "stop"):
        assert f"`{name}`" in section("Sampling")
    assert f"{sampling.MAX_STOP_STRINGS} of {sampling.MAX_STOP_BYTES} bytes" in section("Sampling")
    assert f"| {sampling.FIXED['top_p']} | {sampling.FIXED['top_p']} |" in section("Sampling")


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("Request", f"1 to {ranges.MAX_CHOICES}"),
        ("Request", f"up to {ranges.MAX_STOP_STRINGS} of {ranges.MAX_STOP_CHARS:,} characters, {ranges.MAX_ALL_STOP_CHARS:,} together"),
        ("Request", f"0 to {ranges.MAX_TOP_LOGPROBS}, only"),
        ("Request", f"up to {ranges.MAX_BIASES:,} token ids"),
        ("Request", f"up to {tools.MAX_TOOLS:,} |"),
        ("Tools", f"1 to {tools.MAX_NAME_CHARS} characters"),
        ("Schemas", f"more than {document.MAX_DEPTH} schemas inside"),
        ("Schemas", f"more than {check.MAX_PATTERNS:,} patterns"),
        ("Schemas", f"{validator.MAX_SUBSCHEMAS:,} schemas, {validator.MAX_HELD_PATTERNS} patterns or {validator.MAX_SCHEMA_BYTES // 1024} KiB"),
        ("Limits", f"{sizes.MAX_JSON_BYTES // 2**20} MiB for one tool"),
        ("Limits", f"{sizes.MAX_TOOLS_BYTES // 2**20} MiB for all"),
    ],
)  # fmt: skip
def test_bounds_are_the_ones_that_hold(title: str, words: str) -> None:
    assert words in section(title)


def test_links_lead_somewhere() -> None:
    headings = {heading.lower().replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", TEXT, re.MULTILINE)}

    assert set(re.findall(r"\]\(#([a-z-]+)\)", TEXT)) <= headings
