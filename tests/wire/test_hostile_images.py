"""Hostile images, URLs and sites, one by one over HTTP: each has its documented error, and nobody else notices.

What holds for each, whole and streamed: status, `param` and message are as documented and repeat no secret; the engine is not
asked; the ledger has one row without tokens or cost; nothing of it is held; no private address was connected to; the decoding
processes are those that were there before; another tenant's image is answered right afterwards.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from server.media import pool
from tests.media.files import picture, saved
from tests.media.sites import OTHER, PUBLIC
from tests.services import hostile_files as files
from tests.services import hostile_sites as sites
from tests.services import hostile_urls as urls
from tests.services.hostile_place import (
    LIFTED_CHARS,
    NUMBERS,
    PART,
    Place,
    body,
    check_message,
    good,
    in_base64,
    open_places,
    part,
    raw,
)
from tests.services.hostile_sites import Internet, open_internet
from tests.services.images import data_url


@pytest.fixture(scope="module", autouse=True)
def _patient() -> Iterator[None]:
    """Whatever else the machine does, decoders get their time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "PATIENCE", 60.0)
        yield


@pytest.fixture(scope="module")
def internet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Internet]:
    with open_internet(tmp_path_factory.mktemp("internet")) as opened:
        yield opened


@pytest.fixture(scope="module")
def places(internet: Internet) -> Iterator[Callable[..., Place]]:
    with open_places(internet) as opened:
        yield opened


@pytest.fixture
def strict(places: Callable[..., Place]) -> Place:
    return places("strict")


@pytest.fixture
def following(places: Callable[..., Place]) -> Place:
    return places("following", max_redirects=3)


@pytest.fixture
def hasty(places: Callable[..., Place]) -> Place:
    return places("hasty", fetch_timeout_s=0.4, decode_timeout_s=2.0, max_redirects=3)


@pytest.fixture
def dialled(internet: Internet) -> list[tuple[str, int]]:
    internet.dialled.clear()
    internet.names.asked.clear()
    return internet.dialled


@pytest.mark.parametrize("url", urls.REFUSED, ids=range(len(urls.REFUSED)))
def test_a_url_that_may_not_be_is_refused_before_anything_is_looked_up(strict: Place, dialled: list[Any], url: str) -> None:
    strict.refused(lambda: raw(part(strict.internet.url(url))), 400, urls.REFUSED[url][1])
    assert ({}, []) == (strict.internet.names.asked, dialled)


@pytest.mark.parametrize("url", urls.NAMED, ids=range(len(urls.NAMED)))
def test_a_name_of_what_is_not_public_is_not_connected_to(strict: Place, dialled: list[Any], url: str) -> None:
    strict.refused(lambda: raw(part(strict.internet.url(url, next(NUMBERS)))), 422, urls.NAMED[url])
    assert (2, []) == (strict.internet.names.asked.total(), dialled)


@pytest.mark.parametrize("path", sites.BROKEN)
def test_a_bad_server_is_asked_once(strict: Place, dialled: list[Any], path: str) -> None:
    strict.refused(
        lambda: raw(part(strict.internet.url(f"http://img-$n.test:$port/{path}?key=hunter2", next(NUMBERS)))),
        422,
        sites.BROKEN[path][2],
    )
    assert (2, [(PUBLIC, strict.internet.port)] * 2) == (strict.internet.names.asked.total(), dialled)


@pytest.mark.parametrize("path", ["to-good", "to-loopback", "in-circles"])
def test_redirects_are_not_followed_unless_they_may(strict: Place, dialled: list[Any], path: str) -> None:
    url = strict.internet.url(f"http://img.test:$port/{path}")
    strict.refused(lambda: raw(part(url)), 422, "redirects (status `302`), which is not followed")
    assert [(PUBLIC, strict.internet.port)] * 2 == dialled


@pytest.mark.parametrize(
    ("kind", "path"), [("rebound", "good"), ("img", "good?a=/../b#c"), ("img", "good?http://u:p@127.0.0.1/")]
)
def test_a_name_is_resolved_once_and_that_address_is_connected_to(
    strict: Place, dialled: list[Any], kind: str, path: str
) -> None:
    strict.taken(lambda: raw(part(strict.internet.url(f"http://{kind}-$n.test:$port/{path}", next(NUMBERS)))), files.SIZE)
    assert [1, 1] == list(strict.internet.names.asked.values())
    assert [(PUBLIC, strict.internet.port)] * 2 == dialled


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_no_proxy_of_the_environment_is_asked(
    strict: Place, dialled: list[Any], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, strict.internet.url("http://127.0.0.1:$port"))
    strict.taken(lambda: raw(part(strict.internet.url("http://img.test:$port/good"))), files.SIZE)
    assert [(PUBLIC, strict.internet.port)] * 2 == dialled


def sweep(place: Place, seed: int, num: int) -> None:
    """URLs put together from what URLs are made of: none leads anywhere but to the public site, and each has its answer."""
    randomly = random.Random(seed)
    pieces = [*urls.PIECES, *urls.PRIVATE_HOSTS, f":{place.internet.port}"]

    def url() -> str:
        return randomly.choice(["http://", "https://", ""]) + "".join(randomly.choices(pieces, k=randomly.randint(1, 6)))

    for _ in range(0, num, 20):
        for answer in place.ask(place.hostile, *(raw(part(url())) for _ in range(20))):
            assert answer.status in (400, 422)
            assert PART == answer.error["param"]
            assert len(answer.error["message"]) < 400
        place.check_private()
    place.check_well()


def test_urls_put_together_at_random_lead_nowhere(strict: Place) -> None:
    sweep(strict, seed=1, num=200)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 6))
def test_many_urls_put_together_at_random_lead_nowhere(strict: Place, seed: int) -> None:
    sweep(strict, seed, num=2000)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("https://img-$n.test:$tls/", "no certificate that is valid"),
        ("https://127.7.7.7:$tls/", "no certificate that is valid"),
        ("http://img-$n.test:$tls/", "broken"),
        ("https://img-$n.test:$hasty/", "can't be connected to"),
        ("http://img-$n.test:$closed/", "can't be connected to"),
        ("https://img-$n.test:$closed/", "can't be connected to"),
    ],
)
def test_a_port_that_speaks_something_else(strict: Place, url: str, says: str) -> None:
    strict.refused(lambda: raw(part(strict.internet.url(url, next(NUMBERS)))), 422, says)


@pytest.mark.parametrize("name", files.REFUSED)
def test_a_file_that_is_no_good_is_refused_in_whatever_way_it_comes(strict: Place, name: str) -> None:
    make, _, says = files.REFUSED[name]
    file = make()
    strict.internet.files["file"] = file
    who = strict.ample
    for url in (in_base64(file, lifted=False), in_base64(file, lifted=True), strict.internet.url("http://img.test:$port/file")):
        strict.refused(lambda url=url: raw(part(url)), 422, says, who=who)


@pytest.mark.parametrize("name", files.TAKEN)
def test_a_file_that_shows_a_picture_all_the_same_is_taken(strict: Place, name: str) -> None:
    file = files.TAKEN[name]()
    strict.internet.files["file"] = file
    for url in (in_base64(file, lifted=False), in_base64(file, lifted=True), strict.internet.url("http://img.test:$port/file")):
        strict.taken(lambda url=url: raw(part(url)), files.SIZE)


@pytest.mark.parametrize("text", urls.NO_BASE64, ids=range(len(urls.NO_BASE64)))
def test_base64_that_is_none_is_refused_short_and_lifted(strict: Place, text: str) -> None:
    for url in (f"data:image/png;base64,{text}", f"data:image/png;base64,{text}".ljust(LIFTED_CHARS)):
        strict.refused(lambda url=url: raw(part(url)), 422, urls.NO_BASE64[text])


@pytest.mark.parametrize(
    "change",
    [
        lambda sent: sent.replace(b"/", b"\\/"),
        lambda sent: sent.replace(b"/", b"\\/", 2),
        lambda sent: sent.replace(b"data:", b"DATA:").replace(b"base64", b"BASE64"),
        lambda sent: sent.replace(b"data:", b"d\\u0061ta:"),
        lambda sent: sent.replace(b"image/png;", b";"),
        lambda sent: sent.replace(b"image/png;", b"text/html;charset=utf-8;"),
        lambda sent: re.sub(rb"(base64,.{76})", rb"\1\\r\\n", sent),
        lambda sent: sent.replace(b"=", b""),
        lambda sent: sent.replace(b'{"url": "', b'{"url": "http://127.0.0.1/", "url": "'),
    ],
)
def test_other_spellings_of_a_data_url_are_the_same_image(strict: Place, change: Callable[[bytes], bytes]) -> None:
    for lifted in (False, True):
        sent = raw(part(in_base64(saved(picture(), "PNG", compress_level=0), lifted=lifted)))
        assert sent != change(sent)
        strict.taken(lambda sent=sent: change(sent), files.SIZE)


@pytest.mark.parametrize(
    ("settings", "url", "status", "says"),
    [
        ({"remote_urls": "deny"}, "http://img.test:$port/good", 400, "have `tenants."),
        ({"allowed_hosts": [".img.test"]}, "http://evilimg.test:$port/good", 400, "none of the hosts"),
        ({"allowed_hosts": [".img.test"]}, "http://img.test.evil.test:$port/good", 400, "none of the hosts"),
        ({"allowed_hosts": ["img.test"]}, "http://127.7.7.7:$port/good", 400, "none of the hosts"),
        ({"denied_hosts": [".evil.test"]}, "http://ＥＶＩＬ.test.:$port/good", 400, "`evil.test` are denied"),
        ({"denied_hosts": ["127.7.7.7"]}, "http://0x7f070707:$port/good", 400, "`127.7.7.7` are denied"),
        ({"max_image_bytes": 100}, "http://img.test:$port/good", 422, "larger than the `100` bytes"),
        ({"max_image_bytes": 100}, data_url(files.plain()), 422, "more than `100`"),
        ({"max_pixels": 390}, "http://img.test:$port/good", 422, "`23` x `17` = `391` pixels, more than `390`"),
        ({"max_total_bytes": 100}, data_url(files.plain()), 400, "bytes, more than `100` together"),
        ({"max_total_pixels": 390}, data_url(files.plain()), 400, "pixels, more than `390` together"),
        ({"max_images": 0}, data_url(files.plain()), 400, "none are taken from this tenant"),
    ],
)  # fmt: skip
def test_what_a_tenant_may_not_have(strict: Place, dialled: list[Any], settings: Any, url: str, status: int, says: str) -> None:
    strict.refused(lambda: raw(part(strict.internet.url(url))), status, says, who=strict.customer(**settings))


@pytest.mark.parametrize("url", ["http://img.test:$port/404", "data:image/png;base64,%%%%", "http://loop.test:$port/"])
def test_twenty_times_the_same_is_one_mistake(strict: Place, dialled: list[Any], url: str) -> None:
    strict.refused(lambda: raw(*[part(strict.internet.url(url))] * 20), 422, "")
    assert len(dialled) == 2 * ("img" in url)
    assert strict.internet.names.asked.total() == 2 * ("test" in url)


@pytest.mark.parametrize("url", ["http://img.test:$port/404?$n", "file:///etc/passwd", "data:image/png;base64,AAAA"])
@pytest.mark.parametrize("num", [65, 1000])
def test_more_images_than_may_be_are_refused_before_any_is_looked_at(
    strict: Place, dialled: list[Any], url: str, num: int
) -> None:
    parts = [part(strict.internet.url(url, number)) for number in range(num)]
    strict.refused(lambda: raw(*parts), 400, f"is image `65` of `{num}`", "messages[0].content[65]")
    assert ({}, []) == (strict.internet.names.asked, dialled)


@pytest.mark.parametrize("role", ["system", "assistant", "tool"])
def test_a_bad_image_in_any_role_names_its_part(strict: Place, role: str) -> None:
    call = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}
    message = {"role": role, "content": [part("data:image/png;base64,iVBO")], **({"tool_call_id": "c"} if role == "tool" else {})}
    messages = [*([call] if role == "tool" else []), message, {"role": "user", "content": "look"}]
    where = f"messages[{len(messages) - 2}].content[0]"
    strict.refused(lambda: raw(messages=messages), 422, "no image", where)


@pytest.mark.parametrize("kind", ["input_image", "image", "video_url", "input_audio", "file", "IMAGE_URL", "", "x" * 100_000])
def test_another_kind_of_part_is_named(strict: Place, kind: str) -> None:
    strict.refused(lambda: raw({"type": kind, kind: {"url": "http://127.0.0.1/"}}), 400, "parts of type `text` and `image_url`")


@pytest.mark.parametrize(
    "value", [None, 5, True, [], {}, {"url": None}, {"url": 5}, {"url": ["http://127.0.0.1/"]}, {"url": "x", "detail": "x"}]
)
def test_an_image_url_that_is_none_is_named(strict: Place, value: Any) -> None:
    for answer in strict.both(strict.ample, lambda: raw({"type": "image_url", "image_url": value})):
        assert 400 == answer.status
        assert answer.error["param"].startswith(f"{PART}.image_url")
        check_message(answer, "")


WRONG_PLACES: list[Callable[[str], dict[str, Any]]] = [
    *(lambda url, name=name: {name: url} for name in ("user", "model", "stop", "seed", "tool_choice", "response_format", "service_tier", "reasoning_effort")),
    *(lambda url, name=name: {"messages": [{"role": "user", "content": "look", name: url}]} for name in ("role", "name", "tool_call_id")),
    lambda url: {"messages": [{"role": "user", "content": [{"type": url, "text": "look"}]}]},
    lambda url: {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x", "detail": url}}]}]},
    lambda url: {"tools": [{"type": "function", "function": {"name": url}}]},
    lambda url: {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": url}}}]},
    lambda url: {"tools": [{"type": "function", "function": {"name": "f", "description": url}}]},
    lambda url: {"messages": [{"role": "assistant", "tool_calls": [{"id": url, "function": {"name": "f", "arguments": url}}]},
                              {"role": "tool", "tool_call_id": url, "content": "look"}]},
    lambda url: {url: 1},
]  # fmt: skip


@pytest.mark.parametrize("place", WRONG_PLACES, ids=range(len(WRONG_PLACES)))
def test_a_data_url_where_none_belongs_is_a_string_as_any(strict: Place, place: Callable[[str], dict[str, Any]]) -> None:
    """Short, it is never lifted; so the long one's answer, too, may speak of nothing but what was sent."""
    statuses = []
    for length in (2_000, LIFTED_CHARS):
        url = in_base64(b"x", lifted=False).ljust(length, "A")
        for answer in strict.both(strict.ample, lambda url=url: raw(**place(url))):
            statuses.append(answer.status)
            if answer.status != 200:
                assert (True, False) == (len(answer.error["message"]) < 400, "lifted:" in answer.error["message"]), answer.body
    assert [statuses[0]] * 4 == statuses
    assert statuses[0] in (200, 400, 404)


def test_a_mistake_behind_an_image_is_found_where_it_was_sent(strict: Place) -> None:
    sent = raw(part(in_base64(files.plain(), lifted=True)))[:-1] + b", x: 1}"
    for answer in strict.both(strict.ample, lambda: sent):
        assert (400, None) == (answer.status, answer.error["param"])
        assert f"(byte {sent.index(b' x: 1') + 1})" in answer.error["message"]


def test_a_forged_reference_is_what_it_says(strict: Place) -> None:
    forged = "lifted:" + "0" * 32 + ":0"
    (answer,) = strict.ask(
        who := strict.customer(), raw({"type": "text", "text": forged}, part(in_base64(files.plain(), lifted=True)))
    )
    assert 200 == answer.status
    assert forged.encode() in bytes(token_id for token_id in who.at_engine()[0]["token_ids"] if token_id < 256)


@pytest.mark.parametrize("path", sites.REDIRECTS)
def test_where_a_redirect_leads_to_is_looked_at_as_the_url_was(following: Place, dialled: list[Any], path: str) -> None:
    _, num_connections, says = sites.REDIRECTS[path]
    kind = {"back": "rebound", "from-afar": "other"}.get(path, "img")
    following.refused(lambda: raw(part(following.internet.url(f"http://{kind}-$n.test:$port/{path}", next(NUMBERS)))), 422, says)
    assert 2 * num_connections == len(dialled)


def test_a_good_redirect_is_followed(following: Place, dialled: list[Any]) -> None:
    following.taken(lambda: raw(part(following.internet.url("http://img.test:$port/to-good"))), files.SIZE)
    assert {(PUBLIC, following.internet.port): 2, (OTHER, following.internet.port): 2} == Counter(dialled)


@pytest.mark.parametrize("url", [*(f"http://img-$n.test:$port/{path}" for path in sites.SLOW), "http://mute-$n.test:$port/"])
def test_a_site_that_takes_its_time_is_given_up(hasty: Place, url: str) -> None:
    hasty.refused(lambda: raw(part(hasty.internet.url(url, next(NUMBERS)))), 422, "was not there within `0.4` s")


def test_a_file_that_takes_long_to_decode_takes_its_process_with_it_and_nobody_else(hasty: Place) -> None:
    file = in_base64(files.png_of_chunks(), lifted=False)
    before, hasty.workers = set(hasty.workers), []
    (answer,) = hasty.ask(hasty.customer(), raw(part(file)))
    assert (422, PART) == (answer.status, answer.error["param"])
    check_message(answer, "took longer than `2` s")
    hasty.warm_up()
    assert 1 == len(before - set(hasty.workers))
    hasty.check_well()


def test_twenty_hostile_requests_at_once_leave_a_neighbour_alone(hasty: Place) -> None:
    """The neighbour's stream goes on to its end, and its own images are answered meanwhile."""
    ask = hasty.internet.url
    bodies = [
        raw(part(ask(f"http://img-$n.test:$port/{path}", next(NUMBERS))))
        for path in [*sites.SLOW, "endless", "headers", "404", "reset", "in-circles"]
    ]
    bodies += [
        raw(part(data_url(files.REFUSED[name][0]()))) for name in ("the PNG bomb", "a PNG with a zTXt bomb", "HTML", "a cut PNG")
    ]
    bodies += [raw(part(data_url(files.png_of_chunks()))), raw(part(ask("http://127.0.0.1:$port/")))]
    bodies += [raw(*[part(f"http://img-{next(NUMBERS)}.test:{hasty.internet.port}/drips") for _ in range(64)]) for _ in range(3)]
    assert 20 == len(bodies)
    with hasty.neighbour.stream("long story") as pieces, ThreadPoolExecutor(1) as threads:
        hostile = threads.submit(hasty.ask, hasty.ample, *bodies)
        while not hostile.done():
            assert 200 == hasty.neighbour.chat(**body(good())).status
        assert {400, 422} == {answer.status for answer in hostile.result()}
        assert b"data: [DONE]" in b"".join(pieces)
    hasty.warm_up()
    hasty.check_well()


ELSEWHERE = {"the model takes text only", "too many of the tenant's images wait"}
"""Documented errors that tests of their own have."""


def test_what_is_said_here_is_what_is_documented() -> None:
    """Each row's words are in the table of errors, for its status; and each of the table's words has a row here."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "images.md").read_text(encoding="utf-8")
    documented = {
        int(status): set(words.split("; ")) for status, words in re.findall(r"^\| (4\d\d) \| (.*) \|$", text, re.MULTILINE)
    }
    here = {
        400: {words for words, _ in urls.REFUSED.values()},
        422: {words for _, words, _ in (*files.REFUSED.values(), *sites.BROKEN.values())},
    }
    here[400] |= {
        "a part of another type",
        "too many images",
        "a host, or URLs at all, that the tenant may not use",
        "together too many bytes or pixels",
    }
    here[422] |= {urls.NOT_PUBLIC, "base64 that is none", "too long to decode", "a redirect"}
    assert here[400] == documented[400] - ELSEWHERE
    assert here[422] == documented[422]
