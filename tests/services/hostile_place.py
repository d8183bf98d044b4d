"""A gateway that is sent hostile images, what it says to them, and what is to hold afterwards."""

from __future__ import annotations

import ipaddress
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import psutil

from tests.media.files import workers
from tests.media.sites import OTHER, PUBLIC
from tests.services import hostile_files as files
from tests.services.hostile_sites import MAX_BYTES, Internet
from tests.services.images import NETWORK, data_url
from tests.wire.customers import END, Answer, Customer, House, ledger_rows, open_house, read_answer, wait_for

SCRIPT = [
    {
        "when": {"contains": "long story"},
        "step_interval_ms": 5,
        "reply": [{"repeat": {"times": 60, "of": [{"text": "and then "}]}}, *END],
    },
    {"reply": [{"text": "A picture."}, *END]},
]
CODES = {400: "invalid_value", 422: "invalid_image"}
PART = "messages[0].content[1]"
LIFTED_CHARS = 70_000
NUMBERS = itertools.count(1)


class Place:
    """A gateway on the internet, a tenant of it that means well, and the files that it had open before."""

    def __init__(self, house: House, internet: Internet) -> None:
        self.house = house
        self.internet = internet
        self.open_before = len(open_payloads())
        self.neighbour = house.tenant("neighbour")
        self.hostile = self.customer(max_image_bytes=MAX_BYTES)
        self.asked: dict[Customer, list[int]] = {}
        self.ample = self.customer()
        self.workers: list[psutil.Process] = []
        self.warm_up()

    def warm_up(self) -> None:
        """Have all decoding processes at work: it takes two tenants, as none gets them all."""
        friends = (self.neighbour, self.house.tenant("friend"))

        def ask(friend: Customer) -> int:
            return friend.chat(**body(*(good() for _ in range(8)))).status

        def both_at_work() -> bool:
            with ThreadPoolExecutor(len(friends)) as threads:
                assert [200, 200] == list(threads.map(ask, friends))
            self.workers = workers()
            return len(self.workers) == 2

        wait_for(both_at_work)

    def ask(self, customer: Customer, *bodies: bytes) -> list[Answer]:
        """All of them at once."""
        url = f"{self.house.url}/v1/chat/completions"
        headers = {**customer.headers, "content-type": "application/json"}
        with ThreadPoolExecutor(len(bodies)) as threads:
            sent = threads.map(lambda each: self.house.http.post(url, content=each, headers=headers), bodies)
            answers = [read_answer(answer) for answer in sent]
        self.asked.setdefault(customer, []).extend(answer.status for answer in answers)
        return answers

    def both(self, customer: Customer, make: Callable[[], bytes]) -> list[Answer]:
        """What is said to what `make` makes, whole and streamed; what is to hold afterwards does."""
        answers = self.ask(customer, make(), make().removesuffix(b"}") + b', "stream": true}')
        self.check_well()
        return answers

    def refused(
        self, make: Callable[[], bytes], status: int, says: str, param: str | None = PART, who: Customer | None = None
    ) -> None:
        """Both get this error."""
        who = who or self.hostile
        for answer in self.both(who, make):
            assert (status, CODES[status], param) == (*answer.outcome, answer.error["param"]), answer.body
            check_message(answer, says)

    def taken(self, make: Callable[[], bytes], *sizes: tuple[int, int]) -> None:
        """Both are answered, and the engine has had images of these sizes."""
        who = self.customer()
        answers = self.both(who, make)
        assert [200, 200] == [answer.status for answer in answers], answers[0].body
        assert [list(sizes)] * 2 == [[(image["width"], image["height"]) for image in asked["media"]] for asked in who.at_engine()]

    def customer(self, **media: Any) -> Customer:
        """A new tenant that may have images from everywhere."""
        return self.house.tenant(media={"remote_urls": "allow", **media})

    def check_ledger(self) -> None:
        """One row for each request; those that were refused had no tokens, cost nothing, and never came to the engine."""

        def of_tenants() -> dict[str, list[Any]]:
            found: dict[str, list[Any]] = {customer.name: [] for customer in self.asked}
            for row in ledger_rows(self.house.path):
                found.setdefault(row["tenant"], []).append(row)
            return found

        asked = sum(map(len, self.asked.values()))
        rows_of = wait_for(of_tenants, lambda found: sum(len(found[customer.name]) for customer in self.asked) >= asked)
        for customer, statuses in self.asked.items():
            rows = rows_of[customer.name]
            assert len(statuses) == len(rows)
            refused = [row for row in rows if row["outcome"] != "finished"]
            assert len(statuses) - statuses.count(200) == len(refused)
            assert all((0, 0, 0) == (row["input_tokens"], row["output_tokens"], row["cost_nano_usd"]) for row in refused)
            assert all(("invalid", None) == (row["outcome"], row["admitted_unix_ms"]) for row in refused)
            assert statuses.count(200) == len(customer.at_engine())

    def check_well(self) -> None:
        """The neighbour is answered, nothing is held or open, and nobody was where nobody may be."""
        assert 200 == self.neighbour.chat(**body(good())).status
        wait_for(lambda: self.house.gateway.gateway.held.total, lambda num: num == 0)
        wait_for(open_payloads, lambda names: len(names) <= self.open_before)
        assert self.workers == workers(), "none of the decoding processes has ended"
        self.check_private()

    def check_private(self) -> None:
        """No private address was connected to."""
        hosts = {ipaddress.ip_address(host) for host, _ in self.internet.dialled if host not in (PUBLIC, OTHER)}
        assert [] == [host for host in hosts if not host.is_global or host.is_multicast]
        assert [0] * len(self.internet.canaries) == [canary.num_connections for canary in self.internet.canaries]


def open_payloads() -> list[str]:
    """The memory files of images that are open in this process."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [name for name in found if re.match(r"/memfd:(payload|pixels)\b", name)]


def check_message(answer: Answer, says: str) -> None:
    message = answer.error["message"]
    assert says in message
    assert len(message) < 400
    assert "\n" not in message
    for secret in ("hunter2", "secret", "iVBOR", "ORACLE", "Traceback", "/proc", "memfd"):
        assert secret not in message
    if answer.error["param"] is not None:
        assert f"`{answer.error['param']}" in message


def part(url: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def good() -> dict[str, Any]:
    """An image that no request has had before."""
    return part(data_url(files.plain() + str(next(NUMBERS)).encode()))


def body(*parts: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "kimi-k3", "messages": [{"role": "user", "content": [{"type": "text", "text": "look"}, *parts]}], **fields}


def raw(*parts: Any, **fields: Any) -> bytes:
    return json.dumps({**body(*parts), **fields}).encode()


def in_base64(file: bytes, *, lifted: bool) -> str:
    """A `data:` URL, with so much white space that it is taken out of the body, or short."""
    url = data_url(file)
    return url + " " * (LIFTED_CHARS - len(url)) if lifted else url


@contextmanager
def open_places(internet: Internet) -> Iterator[Callable[..., Place]]:
    """`place(name, **media)`: a gateway with these settings, the same for the same name; one at a time."""
    current: dict[str, Place] = {}
    num_open: list[int] = []
    with ExitStack() as stack:

        def close() -> None:
            places = list(current.values())
            current.clear()
            try:
                for place in places:
                    place.check_ledger()
            finally:
                stack.close()
            assert [] == workers(), "the decoding processes end with the gateway"
            num_open.append(psutil.Process().num_fds())

        def place(name: str, **media: Any) -> Place:
            if name not in current:
                close()
                settings = {"ports": internet.ports, "allowed_networks": [NETWORK], "workers": 2, **media}
                house = stack.enter_context(open_house(SCRIPT, media=settings, resolve=internet.names))
                current[name] = Place(house, internet)
            return current[name]

        yield place
        close()
    assert num_open[-1] <= num_open[1], "what the first gateway has opened for good is all that is open"
