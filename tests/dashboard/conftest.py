"""What the tests of the page share: a browser, and gateways that stand still."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.dashboard.tables import Still

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
)  # fmt: skip
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture
def still() -> Iterator[Callable[..., Still]]:
    """`still(*tenants, **settings)`: a gateway whose time is the test's."""
    made: list[Still] = []

    def make(*tenants: Any, **settings: Any) -> Still:
        made.append(Still(*tenants, **settings))
        return made[-1]

    yield make
    for gateway in made:
        gateway.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The machine's own Chromium. Skips where there is none.

    While it runs, its event loop is this thread's: no asynchronous test may be in its module.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("there is no Chromium on the PATH")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()
