"""Keys, tenants and settings that change while a gateway runs: they hold within a second, and no stream notices."""

from __future__ import annotations

import csv
import io
import json
import re
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
from typer.testing import CliRunner

from server.cli import app
from tests.services.gateway import GatewayProcess, running
from tests.services.postgres import postgres_server
from tests.store.conftest import store_url
from tests.wire.customers import END, Customer, ledger_rows, wait_for

__all__ = ["postgres_server", "store_url"]

NUM_PIECES = 70
SCRIPT = [
    {"when": {"contains": "slow"}, "reply": [{"repeat": {"times": NUM_PIECES, "of": [{"text": "a"}, {"wait_ms": 100}]}}, *END]},
    {"reply": [{"text": "yes"}, *END]},
]
PRICE = {"input": 3.0, "output": 15.0}
MODELS = {"kimi-k3": {"price_per_million_tokens_usd": PRICE}}


class Live:
    """A running gateway, and how long its changes take to hold."""

    def __init__(self, gateway: GatewayProcess, http: httpx.Client) -> None:
        self.gateway = gateway
        self.http = http
        self.waits_s: list[float] = []

    def command(self, *arguments: str) -> str:
        """A subcommand, in another process than the gateway's: this one."""
        done = CliRunner().invoke(app, [*arguments, "--config", str(self.gateway.config)])
        assert done.exit_code == 0, done.output
        return str(done.stdout)

    def customer(self, secret: str, tenant: str = "acme") -> Customer:
        return Customer(self.http, self.gateway.url, tenant, secret.strip())

    def status(self, customer: Customer) -> int:
        return self.http.get(f"{customer.url}/v1/models", headers=customer.headers).status_code

    def soon(self, holds: Callable[[], Any]) -> None:
        """A change has been made; note how long it takes to hold."""
        begun_s = time.monotonic()
        wait_for(holds, timeout_s=60)
        self.waits_s.append(time.monotonic() - begun_s)

    def check_waits(self) -> None:
        """Most within a second, on a machine that has nothing else to do."""
        assert statistics.median(self.waits_s) < 5.0, self.waits_s

    def ask(self, method: str, path: str, **body: Any) -> Any:
        answer = self.http.request(method, f"{self.gateway.url}/admin/v1{path}", json=body or None, headers=self.gateway.admin)
        assert answer.is_success, answer.text
        return answer.json()


@contextmanager
def live(folder: Path, **settings: Any) -> Iterator[Live]:
    gateway = GatewayProcess(folder, SCRIPT, **{"models": MODELS, **settings})
    with running(gateway), httpx.Client(timeout=60) as http:
        yield Live(gateway, http)


def tenants_file(folder: Path, **settings: Any) -> str:
    path = folder / "tenants.yaml"
    path.write_text(json.dumps({"tenants": {"acme": settings}}))
    return str(path)


def test_commands_and_admin_api_hold_at_once_and_touch_no_stream(store_url: str, tmp_path: Path) -> None:
    storage = {"ledger_url": store_url, "spool_path": str(tmp_path / "spool")}
    with live(tmp_path / "gateway", storage=storage, tenants={"acme": {}}) as house, ExitStack() as streams:
        first = house.customer(house.command("keys", "create", "--tenant", "acme", "--name", "first"))
        house.soon(lambda: house.status(first) == 200)
        pieces = streams.enter_context(first.stream("slow"))
        (key,) = (key for key in json.loads(house.command("keys", "list", "--format", "json")) if key["name"] == "first")

        second = house.customer(house.command("keys", "rotate", key["id"], "--overlap", "1h"))
        house.soon(lambda: house.status(second) == 200)
        assert house.status(first) == 200, "the old key works for the overlap"
        house.command("keys", "revoke", key["id"])
        house.soon(lambda: house.status(first) == 401)
        house.command("tenants", "apply", tenants_file(tmp_path, limits={"max_context_tokens": 5}))
        house.soon(lambda: second.chat().outcome == (400, "context_length_exceeded"))
        house.command("tenants", "apply", tenants_file(tmp_path, limits={"concurrent_requests": 1}))
        house.soon(lambda: second.chat().outcome == (429, "rate_limit_exceeded"))
        house.command("tenants", "apply", tenants_file(tmp_path))
        house.soon(lambda: second.chat().status == 200)

        third = house.customer(house.ask("POST", "/keys", tenant="acme")["secret"])
        assert house.status(third) == 200, "in this process it holds when the answer is there"
        house.ask("PUT", "/tenants/acme", suspended=True)
        assert [house.status(customer) for customer in (second, third)] == [403, 403]
        house.ask("PUT", "/tenants/acme", limits={"requests_per_minute": 1000})
        assert third.chat().limits("requests")[0] == 1000

        entry = next(entry for entry in third.at_engine() if entry["num_generated_tokens"] > 10)
        assert entry["end"] is None, "the stream was over before the changes were"
        rest = b"".join(pieces)
        assert rest.endswith(b"data: [DONE]\n\n")
        assert (rest.count(b'"content":"a"'), b'"error"' in rest) == (NUM_PIECES - 1, False)
        house.check_waits()
        check_usage(house, third)


def check_usage(house: Live, customer: Customer) -> None:
    """The command and the admin API say the same, and it is what the engine has made."""
    made = customer.at_engine()
    num_input, num_output = sum(len(entry["token_ids"]) for entry in made), sum(entry["num_generated_tokens"] for entry in made)
    wait_for(lambda: json.loads(house.command("usage", "--format", "json"))[0]["output_tokens"] == num_output)
    (line,) = json.loads(house.command("usage", "--tenant", "acme", "--since", "1h", "--format", "json"))
    (told,) = house.ask("GET", "/usage?tenant=acme&since=1h")["data"]

    assert (line["tenant"], line["input_tokens"], line["output_tokens"]) == ("acme", num_input, num_output)
    assert line["finished"] == len(made)
    names = ("requests", "finished", "input_tokens", "cached_tokens", "output_tokens", "cost_usd")
    assert [told[name] for name in names] == [line[name] for name in names]
    (row,) = csv.DictReader(io.StringIO(house.command("usage", "--format", "csv")))
    assert (row["tenant"], row["cost_usd"]) == ("acme", line["cost_usd"])
    by_key = json.loads(house.command("usage", "--by", "key", "--format", "json"))
    assert sum(line["requests"] for line in by_key) == line["requests"]


def test_the_file_and_the_signal(tmp_path: Path) -> None:
    """A changed file holds, also its prices; a signal makes it hold again over what was changed elsewhere."""
    with live(tmp_path, tenants={"acme": {"limits": {"requests_per_minute": 100}}}) as house, ExitStack() as streams:
        customer = house.customer(house.gateway.key_of(house.http, "acme"))
        assert customer.chat().limits("requests")[0] == 100
        pieces = streams.enter_context(customer.stream("slow"))

        house.gateway.write(tenants={"acme": {"limits": {"requests_per_minute": 200}}})
        house.soon(lambda: customer.chat().limits("requests")[0] == 200)
        house.ask("PUT", "/tenants/acme", limits={"requests_per_minute": 300})
        assert customer.chat().limits("requests")[0] == 300
        house.gateway.send(signal.SIGHUP)
        house.soon(lambda: customer.chat().limits("requests")[0] == 200)

        house.gateway.config.write_text("tenants: {acme: {limits: {requests_per_minute: -1}}}")
        wait_for(lambda: "config_refused" in house.gateway.log)
        assert "requests_per_minute" in house.gateway.log
        house.gateway.write(models={"kimi-k3": {"price_per_million_tokens_usd": {"input": 0.0, "output": 2.0}}}, http={"port": 1})
        wait_for(lambda: "config_needs_restart" in house.gateway.log)
        assert "http.port" in house.gateway.log
        assert customer.chat().limits("requests")[0] == 200
        num_made = customer.at_engine()[-1]["num_generated_tokens"]
        wait_for(lambda: ledger_rows(str(tmp_path / "gateway.db"))[-1]["cost_nano_usd"] == 2000 * num_made)
        assert b"".join(pieces).endswith(b"data: [DONE]\n\n")
        house.check_waits()


def test_the_first_key_is_shown_once(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path, SCRIPT)
    with running(gateway), httpx.Client() as http:
        shown = re.findall(r"k3gw-[\w-]{30,}", gateway.log)
        secret = shown[0]
        assert set(shown) == {secret}
        assert Customer(http, gateway.url, "default", secret).chat().status == 200
        assert 0 == gateway.end()
        assert secret.encode() not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        gateway.start()
        assert re.findall(r"k3gw-[\w-]{30,}", gateway.log) == []
        assert Customer(http, gateway.url, "default", secret).chat().status == 200
        assert "default" in gateway.command("keys", "list"), "as a user starts it"
