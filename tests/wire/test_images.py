"""Images over HTTP: what the engine is given, what tenants may send, what is counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from server.images import ImageRule
from server.vocabulary.byte import ByteVocabulary
from tests.media.test_loader import num_payload_files
from tests.services.images import NETWORK, ImageServer, data_url, encoded, image_server
from tests.wire.customers import END, Customer, House, open_house, wait_for

SCRIPT = [
    {"when": {"contains": "fail"}, "reply": [{"text": "."}, "error"]},
    {"when": {"contains": "hang"}, "reply": [{"text": "."}, "hang"]},
    {"when": {"contains": "look"}, "reply": [{"text": "A red square."}, *END]},
]
OFF = {"thinking": {"type": "disabled"}}
VOCABULARY = ByteVocabulary()
MEDIA = [VOCABULARY.control[f"<|media_{name}|>"] for name in ("begin", "content", "pad", "end")]
LARGE = encoded(700, 500, colour=(1, 2, 3, 128)) + b"\0" * 200_000  # large enough to be lifted out of the body


@pytest.fixture(scope="module")
def served() -> Iterator[ImageServer]:
    with image_server({"/red.png": encoded(57, 29), "/wide.webp": encoded(1, 300, "WEBP")}) as server:
        yield server


@pytest.fixture(scope="module")
def house(served: ImageServer) -> Iterator[House]:
    media = {"ports": [served.port, 80, 443], "allowed_networks": [NETWORK], "url_cache_bytes": 1_000_000}
    with open_house(SCRIPT, media=media) as opened:
        yield opened


@pytest.fixture
def customer(house: House) -> Customer:
    return house.tenant(media={"remote_urls": "allow"})


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def body(*parts: Any, **options: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": "look"}, *parts]
    return {"model": "kimi-k3", "messages": [{"role": "user", "content": content}], **options}


def block(width: int, height: int) -> list[int]:
    begin, content, pad, end = MEDIA
    return [begin, *f"image {width}x{height}".encode(), content, *[pad] * ImageRule().num_tokens(width, height), end]


@pytest.mark.parametrize("stream", [False, True])
def test_the_openai_client_sends_images_by_url_and_base64(
    house: House, customer: Customer, served: ImageServer, stream: bool
) -> None:
    client = openai.OpenAI(base_url=f"{house.url}/v1", api_key=customer.key, max_retries=0)
    parts = [image(data_url(encoded(28, 30, "JPEG"))), image(served.url("/red.png")), image(data_url(LARGE))]
    wanted = body(*parts, **({"stream_options": {"include_usage": True}} if stream else {}))
    if stream:
        chunks = list(client.chat.completions.create(**wanted, stream=True, extra_body=OFF))
        said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        usage = chunks[-1].usage
    else:
        answer = client.chat.completions.create(**wanted, extra_body=OFF)
        said, usage = answer.choices[0].message.content, answer.usage
    assert "A red square." == said

    (request,) = customer.at_engine()
    sizes = [(28, 30), (57, 29), (700, 500)]
    assert sizes == [(media["width"], media["height"]) for media in request["media"]]
    for (width, height), media in zip(sizes, request["media"], strict=True):
        assert block(width, height) == request["token_ids"][media["start"] : media["start"] + media["num_tokens"]]
    assert 3 == len({media["content_hash"] for media in request["media"]})
    assert usage.prompt_tokens == len(request["token_ids"]) - len("<response>")  # the stub, in a vocabulary of bytes
    (row,) = house.rows(customer, 1)
    assert (3, len(request["token_ids"])) == (row["images"], row["input_tokens"])


def test_the_same_file_has_one_id_in_a_group_whatever_way_it_comes(house: House, served: ImageServer) -> None:
    group = {"media": {"remote_urls": "allow"}, "cache_group": "family"}
    one, two, other = house.tenant(**group), house.tenant(**group), house.tenant(media={"remote_urls": "allow"})
    file = served.files["/red.png"]
    hashes: list[str] = []
    for customer, url in [(one, data_url(file)), (two, served.url("/red.png")), (other, data_url(file))]:
        assert 200 == customer.chat(**body(image(url))).status
        hashes.append(customer.at_engine()[-1]["media"][0]["content_hash"])
    assert hashes[0] == hashes[1] != hashes[2]


def test_the_prefix_cache_tells_images_and_tenants_apart(house: House) -> None:
    one, other = house.tenant(), house.tenant()
    red, blue = (image(data_url(encoded(600, 400, colour=colour))) for colour in [(255, 0, 0), (0, 0, 255)])

    def cached(customer: Customer, part: Any) -> int:
        answer = customer.chat(**body(part))
        return int(answer.body["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert 0 == cached(one, red)
    assert cached(one, red) > ImageRule().num_tokens(600, 400) // 2
    first = cached(one, blue)
    assert first < ImageRule().num_tokens(600, 400) // 2
    assert 0 == cached(other, red)


def test_text_that_is_a_data_url_stays_text(house: House, customer: Customer) -> None:
    typed = data_url(LARGE)
    assert 200 == customer.chat(**body({"type": "text", "text": typed}, image(data_url(LARGE)))).status
    (request,) = customer.at_engine()
    assert typed.encode() in bytes(token_id for token_id in request["token_ids"] if token_id < 256)
    assert 1 == len(request["media"])


@pytest.mark.parametrize(
    ("role", "before"),
    [
        ("system", []),
        ("assistant", []),
        (
            "tool",
            [{"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}],
        ),
    ],
)
def test_images_are_taken_in_every_role(house: House, customer: Customer, role: str, before: list[Any]) -> None:
    message = {"role": role, "content": [image(data_url(encoded(30, 30)))], **({"tool_call_id": "c"} if role == "tool" else {})}
    messages = [*before, message, {"role": "user", "content": "look"}]
    assert 200 == customer.chat(model="kimi-k3", messages=messages).status
    assert [(30, 30)] == [(media["width"], media["height"]) for media in customer.at_engine()[0]["media"]]


@pytest.mark.parametrize(
    ("settings", "parts", "status", "where", "words"),
    [
        ({}, ["https://example.com/a.png"], 400, 1, "remote_urls"),
        ({"max_images": 2}, ["small"] * 3, 400, 3, "image `3` of `3`; a request may have `2`"),
        ({"max_images": 0}, ["small"], 400, 1, "none are taken from this tenant"),
        ({}, ["small"] * 1000, 400, 65, "image `65` of `1000`; a request may have `64`"),
        ({"max_pixels": 100}, ["small"], 422, 1, "100"),
        ({"max_image_bytes": 50}, ["small"], 422, 1, "50"),
        ({"max_total_bytes": 150}, ["small", "other"], 400, None, "more than `150` together"),
        ({"remote_urls": "allow", "allowed_hosts": ["a.example"]}, ["https://b.example/x"], 400, 1, "b.example"),
    ],
)  # fmt: skip
def test_a_tenants_own_bounds(house: House, settings: Any, parts: Any, status: int, where: int | None, words: str) -> None:
    customer = house.tenant(media=settings)
    files = {"small": data_url(encoded(20, 20)), "other": data_url(encoded(21, 20))}
    answer = customer.chat(**body(*(image(files.get(part, part)) for part in parts)))
    assert (status, "invalid_request_error") == (answer.status, answer.error["type"]), answer.body
    assert words in answer.error["message"]
    assert answer.error["param"] in answer.error["message"]
    if where is not None:
        assert f"messages[0].content[{where}]" == answer.error["param"]
    (row,) = house.rows(customer, 1)
    assert ("invalid", 0, 0) == (row["outcome"], row["input_tokens"], row["cost_nano_usd"])
    assert [] == customer.at_engine()


def test_images_count_against_limits_before_they_cost(house: House) -> None:
    customer = house.tenant(limits={"input_tokens_per_minute": 1000}, media={"remote_urls": "allow"})
    answer = customer.chat(**body(image(data_url(encoded(1920, 1080)))))
    assert (400, "request_exceeds_limit") == answer.outcome
    assert 200 == customer.chat(**body(image(data_url(encoded(300, 300))))).status


def test_a_model_without_eyes_names_the_part(served: ImageServer) -> None:
    media = {"ports": [served.port], "allowed_networks": [NETWORK]}
    with open_house(SCRIPT, models={"blind": {"format": "plain"}}, media=media) as house:
        customer, before = house.tenant(media={"remote_urls": "allow"}), len(served.requests)
        answer = customer.chat(**{**body(image(served.url("/red.png"))), "model": "blind"})
        assert (400, "messages[0].content[1]") == (answer.status, answer.error["param"])
        assert "`blind` takes text only" in answer.error["message"]
        assert before == len(served.requests)


def test_every_ending_gives_back_what_was_held(house: House) -> None:
    """Whole, cut, failed, left in the middle, refused by a limit, not decoded, of two choices; and a body that never becomes whole."""
    customer = house.tenant(limits={"concurrent_requests": 2})
    part, held = image(data_url(LARGE)), house.gateway.gateway.held
    before = num_payload_files()
    assert 200 == customer.chat(**body(part)).status
    assert "length" == customer.chat(**body(part), max_tokens=3).finish_reason
    assert 200 == customer.chat(**body(part), n=2).status
    assert 422 == customer.chat(**body(part, image("data:image/png;base64,AAAA"))).status
    assert 400 == customer.chat(**body(part), temperature=9).status
    assert 500 == customer.chat(**body(part, {"type": "text", "text": "fail"})).status
    hanging = body(part, {"type": "text", "text": "hang"})
    with customer.stream(**hanging), customer.stream(**hanging):
        assert 2 * len(json.dumps(hanging)) < held.total < 3 * len(json.dumps(hanging))
        assert 429 == customer.chat(**body(part)).status
    with customer.connection(cut=1000, **body(part)):
        pass
    with customer.connection(**hanging):
        wait_for(lambda: held.total)
    wait_for(lambda: held.total, lambda num: num == 0)
    wait_for(num_payload_files, lambda num: num == before)


def test_metrics_count_images(house: House, customer: Customer) -> None:
    def metrics() -> dict[str, float]:
        text = httpx.get(f"{house.url}/metrics").text
        return {
            line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith("k3gw_image")
        }

    before = metrics()
    customer.chat(**body(image(data_url(encoded(28, 28))), image(data_url(encoded(56, 56)))))
    customer.chat(**body(image("ftp://example.com/a.png")))
    customer.chat(**body(image(data_url(b"no image"))))
    house.rows(customer, 3)
    after = metrics()
    grown = {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}
    num_tokens = 1 + 4 + 2 * (3 + len("image 28x28"))
    assert {
        'k3gw_images_total{outcome="loaded"}': 2, 'k3gw_images_total{outcome="refused"}': 1, 'k3gw_images_total{outcome="failed"}': 1,
        "k3gw_image_tokens_total": num_tokens,
    } == grown  # fmt: skip
