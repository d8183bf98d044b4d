"""Fixtures that several folders share, and what the last lines of a run say."""

from __future__ import annotations

import fcntl
import gc
import importlib.util
import json
import socket
import sqlite3
import tempfile
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import uvicorn
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from server import logs
from server.app import create_app
from server.demo_model import build
from server.engine.base import Engine
from server.engine.profiles import load_profile
from server.engine.scripted.engine import ScriptedEngine
from server.engine.scripted.script import parse_script
from server.engine.vllm import VllmEngine
from server.media.resolver import Resolve
from server.sections import LogSettings
from server.serving import server_config
from server.settings import Settings
from server.vocabulary.base import Vocabulary
from server.vocabulary.byte import ByteVocabulary
from tests.services.engine_death import check_death

hypothesis_settings.register_profile(
    "gateway", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # no timing fails a test
hypothesis_settings.load_profile("gateway")
KEY = "k3gw-test-key-0123456789"
ADMIN_KEY = "the-admin-key-0123456789"
ROOT = Path(__file__).resolve().parents[1]
NO_SHARED = "no ../shared beside the checkout"
SHARED = ROOT.parent / "shared"
NO_ENGINE = (  # need vLLM's code, but start no engine
    "tests/engine/",
    "tests/grammar/",
    "tests/deploy/test_profile_checks.py",
    "tests/cpu/test_vllm_parsers.py",
)
OWN_ENGINE = ("tests/cpu/test_lifecycle.py", "tests/cpu/test_workers.py")  # start gateways of their own, one at a time
REAL_ENGINE = (
    "tests/cpu/", "tests/wire/test_disconnects.py", "tests/wire/test_engine_counts.py", "tests/wire/test_engine_metrics.py",
    "tests/wire/test_isolation.py",
    "tests/wire/test_load.py", "tests/wire/test_seats.py", "tests/wire/test_tool_schemas.py",
)  # fmt: skip
SLOW = (
    "tests/bench/test_fairness.py", "tests/bench/test_metrics.py", "tests/bench/test_tool_schemas.py",
    "tests/commands/test_keys.py", "tests/commands/test_profiles.py", "tests/dashboard/test_page.py",
    "tests/demo_model/test_checkpoint.py", "tests/deploy/test_install_script.py",
    "tests/deploy/test_live.py", "tests/deploy/test_ray_node.py", "tests/deploy/test_rules.py", "tests/deploy/test_speeds.py",
    "tests/grammar/test_derivations.py", "tests/grammar/test_limits.py", "tests/media/test_pool",
    "tests/middleware/test_authentication.py", "tests/middleware/test_edge.py", "tests/parsers/test_properties.py",
    "tests/prompts/test_forgery.py", "tests/prompts/test_known_texts.py",
    "tests/store/test_database.py", "tests/tenancy/test_registry.py", "tests/test_no_leaks.py", "tests/test_serving.py",
    "tests/tracing/", "tests/wire/test_budgets.py", "tests/wire/test_curl.py", "tests/wire/test_drain.py",
    "tests/wire/test_hostile_images.py", "tests/wire/test_killed.py", "tests/wire/test_live_changes.py",
    "tests/wire/test_load_balancer.py", "tests/wire/test_replicas.py", "tests/wire/test_workers", "tests/wire/agents/",
)  # fmt: skip
"""What takes seconds, because of what it starts or how much it tries."""

CACHE = ROOT / ".cache"
CHAT_TEMPLATE = """\
{%- if date is defined %}date: {{ date }}
{% endif %}
{%- for tool in tools or [] %}tool: {{ tool.function.name }}
{% endfor %}
{%- for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}
{%- if messages[-1].role == "assistant" %}{{ raise_exception("the last message is the assistant's") }}{% endif %}
{%- if add_generation_prompt %}assistant: {% endif %}"""


def pytest_configure(config: pytest.Config) -> None:
    logs.configure(LogSettings(level="error"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What is left out needs not be imported either."""
    path = f"{collection_path.relative_to(ROOT)}{'/' * collection_path.is_dir()}"
    return True if "not slow" in config.option.markexpr and path.startswith(SLOW) else None


def pytest_collection() -> None:
    gc.disable()  # nothing of what is imported and collected is garbage, and each pass of the collector would look at all of it


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fail-on-skip", action="store_true", help="a skipped test fails the run")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker("slow")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where several workers share the tests by groups: one of them has all that needs the session's real engine, which starts once.

    Another begins with what else needs vLLM; never are there more engines than the session's and one beside.
    What takes long stays together by files, so that what they share is made once, and comes before all the rest, which is shared
    out one by one: so no worker is idle at the end.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class OneEngine(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(NO_ENGINE + OWN_ENGINE):
                return "vLLM beside it"
            if "[vllm" in nodeid or nodeid.startswith(REAL_ENGINE):
                return "vLLM's engine"
            return nodeid.partition("::")[0] if nodeid.startswith(SLOW) else nodeid

    return OneEngine(config, log)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not session.config.getoption("--fail-on-skip") or reporter is None or exitstatus != 0:
        return
    # Golden data beside the checkout can't be installed; everything else can, and then a skip hides a hole.
    if any(NO_SHARED not in str(report.longrepr) for report in reporter.stats.get("skipped", [])):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How many tests ran on the real engine, so that a run that left it out can't look like one that did not."""
    ran = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])]
    real = sum("vllm" in report.keywords and not report.nodeid.startswith(NO_ENGINE) for report in ran)
    skipped = len(terminalreporter.stats.get("skipped", []))
    terminalreporter.write_line(f"{real} tests ran on the real engine (vLLM on CPU); {skipped} were skipped")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Golden vectors and the real vocabulary, kept beside the checkout."""
    if not SHARED.is_dir():
        pytest.skip(NO_SHARED)
    return SHARED


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The demo checkpoint, built on first use and whenever its adapter has changed. Skips where its packages are missing."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed, which builds the demo model")
    folder = CACHE / "demo-model"
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "demo-model.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests may run in several processes
        if not build.is_current(folder):
            try:
                build.build(folder, progress=lambda line: None)
            except build.DemoModelError as error:
                pytest.skip(str(error))
    return folder


@pytest.fixture(scope="session")
def chat_model(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo checkpoint with a chat template of its own, which it has not: K3's prompts are made of segments."""
    folder = tmp_path_factory.mktemp("chat-model")
    for file in demo_model.iterdir():
        (folder / file.name).symlink_to(file)
    config = json.loads((demo_model / "tokenizer_config.json").read_text(encoding="utf-8"))
    (folder / "tokenizer_config.json").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": CHAT_TEMPLATE}), encoding="utf-8")
    return folder


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def vllm_engine(chat_model: Path) -> AsyncIterator[Engine]:
    """The session's one real engine, on the session's event loop, in the profile that ships. Nobody may close or kill it.

    At the end its core is killed, which has to be noticed and told.
    """
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    lines: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vLLM's imports warn
        engine = await VllmEngine.open(load_profile("cpu-demo"), chat_model, progress=lines.append)
    assert lines[0].startswith("starting the engine")
    assert len(lines) > 3
    yield engine
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # and its ZeroMQ context, which it leaves to the garbage collector
        await check_death(engine)
        gc.collect()


class LiveGateway:
    """A gateway on a real socket, in a thread of its own, so that blocking clients can be used against it."""

    def __init__(self, engine: Callable[[], Engine], *, resolve: Resolve | None = None, **settings: Any) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="k3gw-")
        storage = {"ledger_url": f"sqlite:///{self.folder.name}/gateway.db", "spool_path": f"{self.folder.name}/spool"}
        settings = {
            "tenancy": {"key": KEY, "admin_key": ADMIN_KEY, **settings.pop("tenancy", {})},
            "engine": {"kind": "scripted"},
            "log": {"level": "error"},
            "storage": {**storage, **settings.pop("storage", {})},
            **settings,
        }
        self.engine: Engine | None = None
        self._ready = threading.Event()

        async def open_engine() -> Engine:
            self.engine = engine()
            return self.engine

        self.app = create_app(Settings.model_validate(settings), open_engine, resolve=resolve)
        self.gateway = self.app.state.gateway
        self.gateway.on_ready = self._ready.set
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._server = uvicorn.Server(server_config(self.app))
        self._thread = threading.Thread(target=self._server.run, args=([self._listener],), daemon=True)

    def start(self) -> LiveGateway:
        self._thread.start()
        assert self._ready.wait(20), "the gateway did not become ready"
        return self

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive(), "the gateway did not stop"
        self.folder.cleanup()

    @property
    def url(self) -> str:
        """The server's address, without a path."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {KEY}"}

    @property
    def admin(self) -> dict[str, str]:
        """Headers of an operator."""
        return {"authorization": f"Bearer {ADMIN_KEY}"}

    def key_of(self, tenant: str) -> str:
        """A new key of a tenant."""
        answer = httpx.post(f"{self.url}/admin/v1/keys", json={"tenant": tenant}, headers=self.admin)
        assert answer.is_success, answer.text
        return str(answer.json()["secret"])

    def ledger(self, num_rows: int) -> list[dict[str, Any]]:
        """All rows of the ledger, once there are `num_rows`, in the order in which the requests ended."""
        end_s = time.monotonic() + 10
        while True:
            with sqlite3.connect(f"{self.folder.name}/gateway.db") as connection:
                connection.row_factory = sqlite3.Row
                rows = [dict(row) for row in connection.execute("SELECT * FROM ledger ORDER BY ended_unix_ms")]
            connection.close()
            if len(rows) >= num_rows or time.monotonic() > end_s:
                assert num_rows == len(rows), rows
                return rows
            time.sleep(0.02)


StartGateway = Callable[..., LiveGateway]


@pytest.fixture
def start_gateway() -> Iterator[StartGateway]:
    """`start_gateway(script, vocabulary=…, **settings)`: a live gateway over the scripted engine; `script` as in its YAML."""
    running: list[LiveGateway] = []

    def start(
        script: Any = (),
        *,
        vocabulary: Vocabulary | None = None,
        seats: int = 256,
        context_length: int = 1 << 20,
        **settings: Any,
    ):
        words = vocabulary or ByteVocabulary()
        parsed = parse_script(list(script), words)
        gateway = LiveGateway(lambda: ScriptedEngine(words, parsed, seats=seats, context_length=context_length), **settings)
        running.append(gateway)
        return gateway.start()

    yield start
    for gateway in running:
        gateway.stop()
