"""The page in a real Chromium, over gateways that answer."""

from __future__ import annotations

import io
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from PIL import Image, ImageStat

from tests.conftest import ADMIN_KEY, LiveGateway, StartGateway

TALK = {
    "tokens_per_step": 3,
    "step_interval_ms": 10,
    "spec": {"draft": 7},
    "reply": [{"repeat": {"times": 50, "of": [{"text": "lorem "}]}}, "stop"],
}
SCRIPT = "<b id=bold>bold</b><script>window.hacked = 1</script>"
PATIENCE_MS = 20_000


class Visit:
    """One page in a browser of its own, and all that it asked for and complained of."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.context.set_default_timeout(PATIENCE_MS)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on(
            "console", lambda message: self.complaints.append(message.text) if message.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.url = url
        self.response = self.page.goto(f"{url}/dashboard")

    def text(self, selector: str) -> str:
        found: str = self.page.locator(selector).inner_text()
        return found

    def tile(self, name: str) -> str:
        return self.text(f"#tile-{name} dd span")

    def until(self, expression: str, argument: Any = None) -> None:
        """Until it is true. Playwright's own waiting evaluates text in the page, which the page's policy forbids."""
        end_s = time.monotonic() + PATIENCE_MS / 1000
        while not self.page.evaluate(expression, argument):
            assert time.monotonic() < end_s, f"not within {PATIENCE_MS} ms: {expression}"
            self.page.wait_for_timeout(50)

    def wait_figures(self) -> None:
        self.until(
            "document.querySelector('#status').dataset.state === 'ready' && document.querySelectorAll('svg .line[d*=L]').length > 3"
        )

    def picture(self) -> Image.Image:
        return Image.open(io.BytesIO(self.page.screenshot(full_page=True))).convert("RGB")

    @property
    def hosts(self) -> set[str]:
        return {urlsplit(request).netloc for request in self.requests}


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Visit]]:
    """`visit(url, **options)`: the page there, in a context of its own."""
    visits: list[Visit] = []

    def visit(url: str, **options: Any) -> Visit:
        visits.append(Visit(browser, url, **options))
        return visits[-1]

    yield visit
    for made in visits:
        made.context.close()


def body(content: str = "hello") -> dict[str, Any]:
    return {"model": "kimi-k3", "messages": [{"role": "user", "content": content}]}


@contextmanager
def load(gateway: LiveGateway, *keys: str) -> Iterator[None]:
    """A client for each of `keys` asks again and again."""
    stopped = threading.Event()

    def ask(key: str) -> None:
        with httpx.Client(timeout=30, headers={"authorization": f"Bearer {key}"}) as client:
            while not stopped.is_set():
                if client.post(f"{gateway.url}/v1/chat/completions", json=body("hello " * 100)).status_code != 200:
                    stopped.wait(0.2)

    threads = [threading.Thread(target=ask, args=(key,), daemon=True) for key in keys]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join(30)


def playwright_error() -> type[Exception]:
    from playwright.sync_api import Error

    return Error


def put_tenants(gateway: LiveGateway, tenants: dict[str, Any]) -> None:
    assert httpx.put(f"{gateway.url}/admin/v1/tenants", json=tenants, headers=gateway.admin).is_success


def cells(visit: Visit) -> dict[str, list[str]]:
    """Tenant -> the texts of its row."""
    script = "rows => rows.map(row => [...row.cells].map(cell => (cell.querySelector('span') ?? cell).textContent))"
    return {row[0]: row[1:] for row in visit.page.locator("#tenants tbody tr").evaluate_all(script)}


def headings(visit: Visit) -> list[str]:
    found: list[str] = visit.page.locator("#tenants thead th").all_text_contents()
    return found[1:]


def test_figures_move_under_load_and_the_table_says_what_the_api_does(
    start_gateway: StartGateway, visit: Callable[..., Visit]
) -> None:
    gateway = start_gateway([TALK], seats=8)
    limits = {"requests_per_minute": 5000, "concurrent_requests": 3}
    put_tenants(
        gateway,
        {
            "acme": {"weight": 4, "limits": limits, "budget": {"tokens_per_day": 10**9}},
            "beta": {"limits": {"concurrent_requests": 1}},
            "idle": {},
        },
    )
    keys = {name: gateway.key_of(name) for name in ("acme", "beta")}
    with load(gateway, *[keys["acme"]] * 3, *[keys["beta"]] * 2):
        page = visit(gateway.url)
        page.wait_figures()
        before = {name: page.tile(name) for name in ("output", "running")}
        assert "–" not in before.values()
        path = page.page.locator("svg .line.orange").first.get_attribute("d")
        page.until("path => document.querySelector('svg .line.orange').getAttribute('d') !== path", path)
        page.until("document.querySelector('#tile-output dd span').textContent.length > 1")
        assert float(page.tile("output").replace(",", "").replace("k", "")) > 0
        assert 3 == pytest.approx(float(page.tile("step")), rel=0.03), "an answer's last step may be shorter"
    gateway.ledger(len(gateway_rows(gateway)))
    usage = {line["tenant"]: line for line in httpx.get(f"{gateway.url}/admin/v1/usage", headers=gateway.admin).json()["data"]}
    for name in ("acme", "beta"):
        wanted = f"{usage[name]['requests']:,}"
        page.until(
            "([name, wanted, at]) => [...document.querySelectorAll('#tenants tbody tr')].some(row => row.cells[0].textContent === name"
            " && row.cells[at].querySelector('span').textContent === wanted)",
            [name, wanted, 1 + headings(page).index("Requests")],
        )
    shown = {name: dict(zip(headings(page), row, strict=True)) for name, row in cells(page).items()}
    rows = {row["name"]: row for row in httpx.get(f"{gateway.url}/dashboard/figures").json()["tenants"]["rows"]}
    assert {"acme", "beta", "idle"} == set(shown) == set(rows)
    for name, row in rows.items():
        assert f"{row['weight']:g}" == shown[name]["Weight"]
        assert f"{row['refused']:,}" == shown[name]["Refused"]
        assert ("–" if row["cache_hit_ratio"] is None else f"{100 * row['cache_hit_ratio']:.0f}\u00a0%") == shown[name][
            "Cache hits"
        ]
    assert ("0 / 3", "0 / 1", "0") == tuple(shown[name]["Running"] for name in ("acme", "beta", "idle"))
    assert shown["acme"]["Requests per min"].endswith(" / 5,000")
    assert shown["acme"]["Budget"].endswith("left")
    assert rows["beta"]["refused"] > 0
    assert [] == page.complaints
    assert {urlsplit(gateway.url).netloc} == page.hosts
    assert [] == page.context.cookies()


def gateway_rows(gateway: LiveGateway) -> list[dict[str, Any]]:
    """What the ledger has once nothing more comes."""

    def pending() -> int:
        status = httpx.get(f"{gateway.url}/admin/v1/status", headers=gateway.admin).json()
        return int(status["pending_ledger_rows"] + status["seated_requests"])

    end_s = time.monotonic() + 15
    while pending():
        assert time.monotonic() < end_s
        time.sleep(0.05)
    usage = httpx.get(f"{gateway.url}/admin/v1/usage", headers=gateway.admin).json()["data"]
    return [{}] * sum(line["requests"] for line in usage)


@pytest.mark.parametrize(
    ("tokens_per_step", "speed", "per_step"), [(1, 118.0, 1.0), ([3, 3, 3, 3, 3, 3, 4], 118 * 22 / 7, 22 / 7)]
)
def test_the_published_speeds_are_shown(
    start_gateway: StartGateway, visit: Callable[..., Visit], tokens_per_step: Any, speed: float, per_step: float
) -> None:
    num_words = round(3 * speed / 6)  # about three seconds
    rule = {
        "tokens_per_step": tokens_per_step,
        "step_interval_ms": 1000 / 118,
        "spec": {"draft": 7},
        "reply": [{"repeat": {"times": num_words, "of": [{"text": "lorem "}]}}, "stop"],
    }
    gateway = start_gateway([rule])
    assert httpx.post(f"{gateway.url}/v1/chat/completions", json=body(), headers=gateway.headers, timeout=30).is_success
    page = visit(gateway.url)
    page.until("document.querySelector('#tile-decode dd span').textContent !== '–'")

    assert speed == pytest.approx(float(page.tile("decode")), rel=0.03)
    assert per_step == pytest.approx(float(page.tile("step")), rel=0.03)
    assert [] == page.complaints


def test_every_tenant_can_be_found(start_gateway: StartGateway, visit: Callable[..., Visit]) -> None:
    gateway = start_gateway()
    put_tenants(gateway, {f"tenant-{number:02}": {"weight": number + 1} for number in range(60)})
    page = visit(gateway.url)
    page.until("document.querySelector('#matching').textContent === '60 tenants'")
    assert "page 1 of 3" == page.text("#page")
    page.page.get_by_role("button", name="Tenant", exact=True).click()
    page.until("document.querySelector('#tenants tbody th').textContent === 'tenant-00'")
    assert "ascending" == page.page.locator("#tenants thead th").first.get_attribute("aria-sort")
    seen = set(cells(page))
    for number in (2, 3):
        page.page.get_by_role("button", name="Next").click()
        page.until(f"document.querySelector('#page').textContent === 'page {number} of 3'")
        seen |= set(cells(page))
    assert {f"tenant-{number:02}" for number in range(60)} == seen
    assert page.page.get_by_role("button", name="Next").is_disabled()
    page.page.get_by_label("Name contains").fill("T-3")
    page.until("document.querySelector('#matching').textContent === '10 of 60 tenants'")
    page.page.get_by_role("button", name="Weight").click()
    page.until("document.querySelector('#tenants tbody th').textContent === 'tenant-39'")
    assert [f"tenant-{number}" for number in range(39, 29, -1)] == list(cells(page))
    assert [] == page.complaints


def test_light_and_dark_and_what_the_reader_chose(start_gateway: StartGateway, visit: Callable[..., Visit]) -> None:
    gateway = start_gateway([TALK])
    with load(gateway, gateway.headers["authorization"].removeprefix("Bearer ")):
        light, dark = (visit(gateway.url, color_scheme=scheme) for scheme in ("light", "dark"))
        for page in (light, dark):
            page.wait_figures()
        brightness = {}
        for name, page in (("light", light), ("dark", dark)):
            picture = page.picture()
            colours = picture.getcolors(1 << 24)
            assert colours is not None
            assert len(colours) > 200, f"the {name} page is blank"
            brightness[name] = ImageStat.Stat(picture.convert("L")).mean[0]
    assert brightness["light"] > 200
    assert brightness["dark"] < 60
    for chosen in ("light", "dark"):
        light.page.locator("#theme").click()
        assert f"Theme: {chosen}" == light.text("#theme")
    assert ImageStat.Stat(light.picture().convert("L")).mean[0] < 60
    light.page.reload()
    light.wait_figures()
    assert "Theme: dark" == light.text("#theme")
    assert ImageStat.Stat(light.picture().convert("L")).mean[0] < 60
    assert [] == light.complaints + dark.complaints


def test_a_browser_from_elsewhere_logs_in_with_the_admin_key(start_gateway: StartGateway, visit: Callable[..., Visit]) -> None:
    gateway = start_gateway(metrics={"access": "key"})
    with pytest.raises(playwright_error(), match="ERR_INVALID_AUTH_CREDENTIALS"):  # a reader would be asked for a password here
        visit(gateway.url)
    wrong = visit(gateway.url, http_credentials={"username": "operator", "password": "not-the-admin-key"})
    assert 401 == wrong.response.status
    operator = visit(gateway.url, http_credentials={"username": "operator", "password": ADMIN_KEY})
    operator.wait_figures()
    assert 200 == operator.response.status
    assert [] == [text for text in operator.complaints if "401" not in text], "a browser first asks without the password"
    assert not [url for url in operator.requests if ADMIN_KEY in url]
    assert [] == operator.context.cookies()


def test_names_are_text_and_nothing_foreign_runs(start_gateway: StartGateway, visit: Callable[..., Visit]) -> None:
    page = visit(start_gateway(models={"kimi-k3": {}, SCRIPT: {}}).url)
    page.until("document.querySelector('#what').textContent.includes('kimi-k3')")
    assert SCRIPT in page.page.locator("#what").text_content()
    assert 0 == page.page.locator("#bold").count()
    assert page.page.evaluate("window.hacked ?? null") is None
    assert [] == page.complaints
    violated = page.page.evaluate(
        """async () => {
            const broken = [];
            addEventListener("securitypolicyviolation", (event) => broken.push(event.effectiveDirective));
            const script = document.createElement("script");
            script.textContent = "window.hacked = 1";
            const image = document.createElement("img");
            image.src = "http://foreign.example/pixel";
            document.body.append(script, image);
            document.body.setAttribute("onclick", "window.hacked = 1");
            document.body.setAttribute("style", "color: red");
            await fetch("http://foreign.example/").catch(() => {});
            document.body.click();
            await new Promise((resolve) => setTimeout(resolve, 200));
            return [broken, window.hacked ?? null];
        }"""
    )
    assert [{"connect-src", "img-src", "script-src-attr", "script-src-elem", "style-src-attr"}, None] == [
        set(violated[0]),
        violated[1],
    ]


def test_a_restart_is_said_and_the_page_goes_on(start_gateway: StartGateway, visit: Callable[..., Visit]) -> None:
    first, second = start_gateway(), start_gateway()
    page = visit(first.url)
    page.wait_figures()
    figures = "**/dashboard/figures?*"
    page.page.route(figures, lambda route: route.abort())
    page.until("document.querySelector('#notice').textContent.includes('does not answer')")
    assert "not reached" == page.text("#status")
    page.page.wait_for_selector("body.old")
    assert page.text("#age").startswith("· figures ")
    drawn = "document.querySelector('svg .line.green').getAttribute('d').length"
    num_before = page.page.evaluate(drawn)
    page.page.unroute(figures)

    def elsewhere(route: Any) -> None:
        answer = httpx.get(second.url + "/dashboard/figures?" + urlsplit(route.request.url).query)
        route.fulfill(status=answer.status_code, body=answer.content, content_type="application/json")

    page.page.route(figures, elsewhere)
    page.until("document.querySelector('#notice').textContent.includes('restarted at')")
    page.until("document.querySelector('#status').dataset.state === 'ready'")
    page.until("document.querySelectorAll('svg .restart').length > 0")
    assert not page.page.locator("body.old").count()
    assert 0 < num_before < page.page.evaluate(drawn), "what was known before is still shown"
    complaints = [text for text in page.complaints if "ERR_FAILED" not in text]
    assert [] == complaints
    page.page.unroute_all(behavior="wait")


def test_several_gateways_under_one_address_are_told_apart(start_gateway: StartGateway, visit: Callable[..., Visit]) -> None:
    gateways = [start_gateway(), start_gateway()]
    page = visit(gateways[0].url)
    page.wait_figures()
    turns = itertools.cycle(reversed(gateways))

    def by_turns(route: Any) -> None:
        answer = httpx.get(next(turns).url + "/dashboard/figures?" + urlsplit(route.request.url).query)
        route.fulfill(status=answer.status_code, body=answer.content, content_type="application/json")

    page.page.route("**/dashboard/figures?*", by_turns)
    page.until("document.querySelector('#notice').textContent.startsWith('Several gateways answer')")
    assert [] == page.complaints
    page.page.unroute_all(behavior="wait")


def test_a_plot_can_be_read_with_the_keyboard_and_the_pointer(start_gateway: StartGateway, visit: Callable[..., Visit]) -> None:
    page = visit(start_gateway().url)
    page.wait_figures()
    figure = page.page.locator("figure", has_text="Requests under way")
    plot, readout = figure.locator("svg"), figure.locator(".readout")
    assert "Requests under way, requests: now running 0, waiting in the engine 0, queued 0" == plot.get_attribute("aria-label")
    plot.focus()
    assert "" == readout.inner_text()
    page.page.keyboard.press("ArrowLeft")
    newest = readout.inner_text()
    assert newest.endswith(" · running 0 · waiting in the engine 0 · queued 0")
    page.page.keyboard.press("Home")
    assert readout.inner_text() < newest
    page.page.keyboard.press("Tab")
    box = plot.bounding_box()
    page.page.mouse.move(box["x"] + box["width"] - 12, box["y"] + 60)
    assert "running 0" in readout.inner_text()


def test_it_fits_a_phone_and_has_names_for_everything(start_gateway: StartGateway, visit: Callable[..., Visit]) -> None:
    gateway = start_gateway()
    put_tenants(gateway, {"a-tenant-with-a-name-as-long-as-a-name-of-a-tenant-is-allowed-to": {}})
    page = visit(gateway.url, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page.wait_figures()
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 390
    unnamed = page.page.evaluate(
        """() => [...document.querySelectorAll("button, input, svg, table, section, [role=region]")].filter((node) =>
            !(node.textContent.trim() || node.getAttribute("aria-label") || node.getAttribute("aria-labelledby") || node.labels?.length)
        ).map((node) => node.outerHTML.slice(0, 80))"""
    )
    assert [] == unnamed
    assert {"col"} == set(page.page.locator("#tenants thead th").evaluate_all("cells => cells.map(cell => cell.scope)"))
    assert {"row"} == set(page.page.locator("#tenants tbody th").evaluate_all("cells => cells.map(cell => cell.scope)"))
    assert [] == page.complaints


def test_nobody_asks_while_nobody_looks(start_gateway: StartGateway, visit: Callable[..., Visit]) -> None:
    page = visit(start_gateway().url)
    page.wait_figures()
    page.page.evaluate(
        """() => {
            Object.defineProperty(document, "hidden", { value: true, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
    )
    before = len(page.requests)
    page.page.wait_for_timeout(3000)
    assert before == len(page.requests)
    page.page.evaluate("() => { delete document.hidden; document.dispatchEvent(new Event('visibilitychange')); }")
    page.until(
        "document.querySelector('#age').textContent.includes(' 0 s') || document.querySelector('#age').textContent.includes(' 1 s')"
    )
    assert len(page.requests) > before


def test_a_name_that_is_too_long_for_its_column_can_be_read(start_gateway: StartGateway, visit: Callable[..., Visit]) -> None:
    gateway = start_gateway([TALK])
    name = "a-tenant." * 7
    put_tenants(gateway, {name: {"weight": 2}})
    page = visit(gateway.url)
    page.wait_figures()
    cell = page.page.locator("#tenants tbody th span", has_text=name)

    assert name == cell.get_attribute("title")
    assert cell.evaluate("cell => cell.parentNode.scrollWidth > cell.parentNode.clientWidth")


def test_a_limits_store_that_is_away_is_no_small_print(start_gateway: StartGateway, visit: Callable[..., Visit]) -> None:
    gateway = start_gateway([TALK], storage={"limits_url": "redis://127.0.0.1:9/0"})
    page = visit(gateway.url)
    page.until("document.querySelector('#notice').textContent.startsWith('The limits store can’t be reached')")

    assert page.page.locator("#notice").is_visible()
    assert "limits store away" in page.text("#what")
