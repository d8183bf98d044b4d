"""What libraries are told through the process environment, and what of it they would see too late."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from server import environment


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    variables, level = dict(os.environ), logging.getLogger("vllm").level
    yield
    os.environ.clear()
    os.environ |= variables
    logging.getLogger("vllm").setLevel(level)


def test_variables_are_set_and_replaced() -> None:
    os.environ["K3_SET"] = "before"
    environment.apply({"K3_SET": "after", "K3_NEW": "1"})
    assert ("after", "1") == (os.environ["K3_SET"], os.environ["K3_NEW"])


@pytest.mark.parametrize(
    ("level", "said"), [("ERROR", ["an error"]), ("error", ["an error"]), ("WARNING", ["a warning", "an error"])]
)
def test_what_vllm_says_while_it_is_imported_is_held_to_its_level(
    caplog: pytest.LogCaptureFixture, level: str, said: list[str]
) -> None:
    environment.apply({"VLLM_LOGGING_LEVEL": level})
    logger = logging.getLogger("vllm.triton_utils.importing")  # as it is before vLLM has set up its log
    logger.warning("a warning")
    logger.error("an error")
    assert said == caplog.messages


def test_a_profile_that_says_nothing_of_it_leaves_the_level() -> None:
    logging.getLogger("vllm").setLevel(logging.INFO)
    environment.apply({})
    assert logging.INFO == logging.getLogger("vllm").level
