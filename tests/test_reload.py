"""What a changed configuration changes, what it leaves, and what is said of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from server import logs
from server.clock import SystemClock
from server.context import Tenant
from server.errors import OverloadedError
from server.gateway import Gateway
from server.models import ModelTable
from server.reload import Reloader, changed_names
from server.sections import LogSettings, ModelSettings
from server.serving import reloadable
from server.settings import Settings, SettingsError, load

START = """\
tenants: {acme: {weight: 1}, "b.c": {weight: 2}}
models: {kimi-k3: {price_per_million_tokens_usd: {input: 3}}}
"""


class Running:
    """A gateway's stand-in: its configuration file, and what has been applied of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_text(START, encoding="utf-8")
        self.applied: list[tuple[str, Any]] = []
        self.fails = False
        self.num_loads = 0
        self.num_tries = 0
        self.reloader = Reloader(
            load(path),
            self._load,
            {
                "tenants": self._note("tenants", lambda settings: {name: of.weight for name, of in settings.tenants.items()}),
                "models.*.price_per_million_tokens_usd": self._note("prices", lambda settings: None),
                "log.level": self._note("level", lambda settings: settings.log.level),
            },
            path=path,
            poll_s=0.01,
        )

    def _load(self) -> Settings:
        self.num_loads += 1
        return load(self.path)

    def _note(self, name: str, what: Callable[[Settings], Any]) -> Callable[[Settings], Any]:
        async def apply(settings: Settings) -> None:
            self.num_tries += 1
            if self.fails:
                raise OSError("the store is away")
            self.applied.append((name, what(settings)))

        return apply

    def write(self, text: str) -> None:
        other = self.path.with_suffix(".new")  # as editors and Kubernetes do it
        other.write_text(text, encoding="utf-8")
        other.replace(self.path)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.reloader.run())
            yield
            task.cancel()


@pytest.fixture(autouse=True)
def _loud() -> Iterator[None]:
    logs.configure(LogSettings(level="info"))
    yield
    structlog.reset_defaults()
    logs.configure(LogSettings(level="error"))


@pytest.fixture
def running(tmp_path: Path) -> Running:
    return Running(tmp_path / "gateway.yaml")


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


async def test_only_what_has_changed_is_applied(running: Running) -> None:
    running.write(START.replace("weight: 2", "weight: 3"))
    await running.reloader.reload()
    assert running.applied == [("tenants", {"acme": 1, "b.c": 3})]

    running.write(START.replace("weight: 2", "weight: 3").replace("input: 3", "input: 4") + "log: {level: debug}\n")
    await running.reloader.reload()
    assert sorted(running.applied[1:], key=str) == [("level", "debug"), ("prices", None)]


async def test_what_is_asked_for_holds_again(running: Running) -> None:
    await running.reloader.reload(everything=True)

    assert sorted(name for name, _ in running.applied) == ["level", "prices", "tenants"]


async def test_what_needs_a_restart_is_named_and_kept(running: Running) -> None:
    with capture_logs() as lines:
        running.write(START + "http: {port: 9000}\nlog: {level: debug, format: json}\n")
        await running.reloader.reload()
        running.write(START + "http: {port: 9000}\n")
        await running.reloader.reload()
        running.write(START)
        await running.reloader.reload()

    assert [line["settings"] for line in lines if line["event"] == "config_needs_restart"] == [
        ["http.port", "log.format"],
        ["http.port"],
    ]
    assert running.applied == [("level", "debug"), ("level", "info")]


async def test_a_model_more_needs_a_restart(running: Running) -> None:
    with capture_logs() as lines:
        running.write(START.replace("models: {", "models: {other: {}, "))
        await running.reloader.reload()

    assert [line["settings"] for line in lines if "settings" in line] == [["models.other"]]


@pytest.mark.parametrize("text", ["tenants: [", "tenants: {acme: {weigth: 1}}\nlog: {level: loud}", "tenants: {a b: {}}", "x: 1"])
async def test_a_broken_file_changes_nothing_and_every_mistake_is_named(running: Running, text: str) -> None:
    running.write(text)
    with pytest.raises(SettingsError) as raised:
        load(running.path)
    with capture_logs() as lines:
        await running.reloader.reload(everything=True)

    assert running.applied == []
    assert [(line["event"], line["mistakes"]) for line in lines] == [("config_refused", raised.value.mistakes)]
    assert len(raised.value.mistakes) == text.count("\n") + 1
    running.write(START)
    await running.reloader.reload()
    assert running.applied == [], "it is as it was before"


async def test_a_changed_file_is_seen(running: Running) -> None:
    async with running.watching():
        running.write(START.replace("weight: 1", "weight: 7"))
        await until(lambda: running.applied)
        assert running.applied == [("tenants", {"acme": 7, "b.c": 2})]
        running.path.unlink()
        await asyncio.sleep(0.05)
        running.write(START)
        await until(lambda: len(running.applied) == 2)
    assert running.applied[1] == ("tenants", {"acme": 1, "b.c": 2})
    assert running.num_loads == 2


async def test_an_unchanged_file_is_not_read(running: Running) -> None:
    async with running.watching():
        await asyncio.sleep(0.1)
        assert running.num_loads == 0
        running.reloader.ask()
        await until(lambda: running.num_loads == 1)


async def test_a_file_that_is_being_written_is_left_alone(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([*range(100, 120), *[200] * 1000])
    real = os.stat

    def growing(path: Any, **options: Any) -> os.stat_result:
        found = real(path, **options)
        return os.stat_result([*found[:6], next(sizes), *found[7:]]) if path == running.path else found

    monkeypatch.setattr("server.reload.os.stat", growing)
    async with running.watching():
        await until(lambda: running.num_loads)
        assert next(sizes) == 200, "read before it was whole"


async def test_what_fails_is_tried_again(running: Running) -> None:
    running.fails = True
    with capture_logs() as lines:
        async with running.watching():
            running.write(START.replace("weight: 1", "weight: 7"))
            await until(lambda: any(line["event"] == "config_not_applied" for line in lines))
            await until(lambda: running.num_tries > 3)
            running.fails = False
            await until(lambda: running.applied)
            await asyncio.sleep(0.05)

    assert running.applied == [("tenants", {"acme": 7, "b.c": 2})]
    assert running.num_loads == 1
    assert 1 == sum(line["event"] == "config_not_applied" for line in lines)


async def test_a_load_that_fails_in_an_unforeseen_way_does_not_end_the_gateway(running: Running) -> None:
    def broken() -> Settings:
        raise RuntimeError("unforeseen")

    reloader = Reloader(Settings(), broken, {})
    with capture_logs() as lines:
        await reloader.reload()

    assert [line["mistakes"] for line in lines] == [["unforeseen"]]


@asynccontextmanager
async def unopened(folder: Path, **settings: Any) -> AsyncIterator[tuple[Gateway, Callable[..., Settings]]]:
    """A gateway whose store was not reached yet, and what makes other settings for it."""
    storage = {"ledger_url": f"sqlite:///{folder / 'store.db'}", "spool_path": str(folder / "spool")}

    def settings_of(**changed: Any) -> Settings:
        return Settings.model_validate({"storage": storage, **settings, **changed})

    gateway = Gateway(settings_of(), SystemClock())
    yield gateway, settings_of
    gateway.storage.ledger.close()
    await gateway.storage.database.close()


async def test_changed_tenants_hold_after_those_of_the_start(tmp_path: Path) -> None:
    async with unopened(tmp_path, tenants={"acme": {"weight": 1}}) as (gateway, settings_of):
        apply, changed = reloadable(gateway)["tenants"], settings_of(tenants={"acme": {"weight": 2}})
        with pytest.raises(OverloadedError):
            await apply(changed)
        await gateway.storage.open()
        gateway.storage.opened.set()
        assert 1 == gateway.storage.keys.tenants()["acme"].weight
        await apply(changed)

        assert 2 == gateway.storage.keys.tenants()["acme"].weight


async def test_a_configured_key_is_replaced(tmp_path: Path) -> None:
    async with unopened(tmp_path, tenancy={"key": "the-first-key-0123"}) as (gateway, settings_of):
        await gateway.storage.open()
        await reloadable(gateway)["tenancy.key"](settings_of(tenancy={"key": "the-second-key-0123"}))

        assert gateway.storage.keys.find(b"the-first-key-0123") is None
        assert gateway.storage.keys.find(b"the-second-key-0123") is not None


def test_a_new_price_is_that_of_a_model_by_all_its_names() -> None:
    def priced(usd: int) -> dict[str, ModelSettings]:
        price = {"price_per_million_tokens_usd": {"input": usd}}
        return {"kimi-k3": ModelSettings.model_validate({"aliases": ["default"], **price}), "other": ModelSettings()}

    models, tenant = ModelTable(priced(3)), Tenant("acme")
    before = models.resolve("default", tenant)
    models.reprice(priced(4))

    found = [models.resolve(name, tenant).price.input for name in ("kimi-k3", "default", "other")]
    assert [4 * 10**9, 4 * 10**9, 0] == found
    assert 3 * 10**9 == before.price.input, "what is under way keeps its price"
    assert models.resolve("default", tenant) in models.open_to(tenant)


def test_names_of_changes_are_whole() -> None:
    before = Settings.model_validate({"tenants": {"a.b": {"weight": 1}}, "tenancy": {"admin_key": "k" * 16}})
    after = Settings.model_validate({"tenants": {"a.b": {"weight": 2}, "c": {}}, "tenancy": {"admin_key": "l" * 16}})

    assert changed_names(before, before) == []
    assert changed_names(before, after) == [("tenants", "a.b", "weight"), ("tenants", "c"), ("tenancy", "admin_key")]


def test_loggers_that_exist_follow_a_new_level(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(LogSettings(level="error", format="json"))
    log = structlog.get_logger("ours")
    log.info("before")
    logs.configure(LogSettings(level="info", format="json"))
    log.info("behind")

    assert ['"event": "behind"' in line for line in capsys.readouterr().err.splitlines()] == [True]
