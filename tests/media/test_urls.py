"""A URL is read in one way, or refused; a number in it is always the address that resolvers take it for."""

from __future__ import annotations

import random
from ipaddress import IPv4Address, IPv4Network, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import InvalidRequestError
from server.media.addresses import AddressRule
from server.media.hosts import is_listed
from server.media.urls import MAX_URL_CHARS, ImageUrl, parse_url

PORTS = [80, 443, 8080]


def parsed(text: str) -> ImageUrl:
    return parse_url(text, ports=PORTS)


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ("https://example.com/a.png", "https://example.com/a.png"),
        ("HTTPS://EXAMPLE.com./a.png#part", "https://example.com/a.png"),
        ("https://example.com", "https://example.com/"),
        ("https://example.com:443?a=b", "https://example.com/?a=b"),
        ("http://example.com:/x", "http://example.com/x"),
        ("http://example.com:443/x", "http://example.com:443/x"),
        ("http://example.com:00080/x", "http://example.com/x"),
        ("https://my_bucket--x.example.com/", "https://my_bucket--x.example.com/"),
        ("https://bücher.de/ä?ö=%2f+&sig=a%2Fb/../c", "https://xn--bcher-kva.de/%C3%A4?%C3%B6=%2f+&sig=a%2Fb/../c"),
        ("https://faß.de/", "https://xn--fa-hia.de/"),
        ("https://ＥＸＡＭＰＬＥ。com/", "https://example.com/"),
        ("https://example.com/a@b:c", "https://example.com/a@b:c"),
        ("https://example.com/?http://u:p@host/", "https://example.com/?http://u:p@host/"),
        ("https://example.com/'\"<>{}|^`", "https://example.com/'\"<>{}|^`"),
        ("https://93.184.216.34/", "https://93.184.216.34/"),
        ("https://0x5db8d822/", "https://93.184.216.34/"),
        ("https://[2606:4700::0:1]:8080/x", "https://[2606:4700::1]:8080/x"),
        ("https://1e100.net/", "https://1e100.net/"),
        ("https://0x7f.1.example/", "https://0x7f.1.example/"),
    ],
)
def test_one_spelling(text: str, spelling: str) -> None:
    assert spelling == parsed(text).text
    assert spelling == parsed(spelling).text


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("2130706433", "127.0.0.1"), ("0x7f.1", "127.0.0.1"), ("0X7F.0x0.0.0X1", "127.0.0.1"), ("017700000001", "127.0.0.1"),
        ("127.1", "127.0.0.1"), ("127.0.1", "127.0.0.1"), ("127.0.0.1.", "127.0.0.1"), ("0177.0.0.01", "127.0.0.1"),
        ("0x7f000001", "127.0.0.1"), ("0", "0.0.0.0"), ("0x", "0.0.0.0"), ("10.0xffffff", "10.255.255.255"),
        ("169.254.43518", "169.254.169.254"), ("0xA9FEA9FE", "169.254.169.254"), ("１２７.０.０.１", "127.0.0.1"),
        ("127。0．0｡1", "127.0.0.1"), ("①②⑦.0.0.1", "127.0.0.1"), ("0ⓧ7f.1", "127.0.0.1"), ("00000000000000000000177.1", "127.0.0.1"),
        ("[::1]", "::1"), ("[::]", "::"), ("[0:0::0:1]", "::1"), ("[::ffff:10.0.0.1]", "::ffff:10.0.0.1"),
        ("[::ffff:7f00:1]", "::ffff:127.0.0.1"), ("[::127.0.0.1]", "::127.0.0.1"), ("[64:ff9b::a00:1]", "64:ff9b::10.0.0.1"),
        ("[fd00:ec2::254]", "fd00:ec2::254"), ("[FE80::1]", "fe80::1"),
    ],
)  # fmt: skip
def test_numbers_are_addresses(text: str, address: str) -> None:
    host = parsed(f"http://{text}/").host

    assert not isinstance(host, str)
    assert ip_address(address) == host
    assert not AddressRule().permits(host)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no scheme"), ("a.png", "no scheme"), ("//example.com/a", "no scheme"), ("/etc/passwd", "no scheme"),
        ("file:///etc/passwd", "`file:` URLs"), ("FILE:///etc/passwd", "`file:` URLs"), ("ftp://example.com/a", "`ftp:` URLs"),
        ("gopher://example.com/_x", "`gopher:` URLs"), ("ms://file-id", "`ms:` URLs"), ("javascript:alert(1)", "`javascript:` URLs"),
        ("data:image/png;base64,AAAA", "`data:` URLs"), ("unix:///run/docker.sock", "`unix:` URLs"), ("localhost:80/a", "`localhost:` URLs"),
        ("http+unix://x/", "`http+unix:` URLs"), ("x" * 200 + "://a/", "`" + "x" * 59 + "…:` URLs"),
        ("http:example.com", "no host"), ("http:/example.com", "no host"), ("http://", "no host"), ("http:///a", "no host"),
        ("http://?a", "no host"), ("http://:80/", "no host"), ("http://#a", "no host"),
        ("http://u:hunter2@example.com/", "credentials"), ("http://u@example.com/", "credentials"), ("http://@example.com/", "credentials"),
        ("http://example.com:80@10.0.0.1/", "credentials"), ("http://a@b@c/", "credentials"),
        ("http://example.com:81/", "port `81`"), ("http://example.com:22/", "port `22`"), ("http://example.com:99999/", "port `99999`"),
        ("http://example.com:0/", "port `0`"), ("http://example.com:123456/", "no host and port"), ("http://example.com:8o/", "no host and port"),
        ("http://example.com:-1/", "no host and port"), ("http://example.com:80:80/", "no host and port"), ("http://a:８０/", "no host and port"),
        ("http://::1/", "no host and port"), ("http://[::1]x/", "no host and port"), ("http://[::1/", "no host and port"),
        ("http://[[::1]]/", "no host and port"), ("http://x[::1]/", "no host and port"),
        ("http://[fe80::1%25eth0]/", "network interface"), ("http://[fe80::1%eth0]/", "network interface"), ("http://[::1%251]/", "network"),
        ("http://[]/", "no IPv6"), ("http://[1.2.3.4]/", "no IPv6"), ("http://[::g]/", "no IPv6"), ("http://[v1.x]/", "no IPv6"),
        ("http://[::ffff:010.0.0.1]/", "no IPv6"), ("http://[1:2:3:4:5:6:7:8:9]/", "no IPv6"),
        ("http://%31%32%37.0.0.1/", "`%`"), ("http://example%2ecom/", "`%`"), ("http://example.com%00.evil.com/", "`%`"),
        ("http://1.2.3.4.5/", "ends like an address"), ("http://1.2.3.256/", "ends like an address"), ("http://256.1/", "ends like an address"),
        ("http://4294967296/", "ends like an address"), ("http://09.1/", "ends like an address"), ("http://1.2.3.08/", "ends like an address"),
        ("http://example.123/", "ends like an address"), ("http://example.0x1/", "ends like an address"), ("http://1..2/", "no host name"),
        ("http://1_2.3/", "ends like an address"), ("http://-1.3/", "ends like an address"), ("http://0x_1.3/", "ends like an address"),
        ("http://./", "no host name"), ("http://../", "no host name"), ("http://.example.com/", "no host name"),
        ("http://example.com../", "no host name"), ("http://exa*mple.com/", "no host name"), ("http://exa,mple.com/", "no host name"),
        ("http://exa$(id)mple.com/", "no host name"), ("http://" + "a" * 64 + ".com/", "no host name"),
        ("http://" + "a." * 130 + "com/", "longer than `253`"), ("http://☃️\u0301.\u0301com/", "no host name"),
        ("http://xn--\u00e9/", "no host name"),
        ("http://example.com\\@10.0.0.1/", "backslashes"), ("http:\\\\10.0.0.1/", "backslashes"), ("http://a/\\b", "backslashes"),
        (" http://example.com/", "blanks at"), ("http://example.com/ ", "blanks at"), ("http://exa mple.com/", "spaces"),
        ("http://example.com/\r\nHost: x", "don't print"), ("http://10.0.0.1\t/", "don't print"), ("ht\ntp://a/", "don't print"),
        ("http://a/\x00", "don't print"), ("http://a/\x7f", "don't print"), ("http://a/\x85", "blanks at"), ("http://a\u3000b/", "don't print"),
        ("http://a/\u202egnp", "don't print"), ("http://a\u200bb/", "don't print"), ("http://a/\ud800", "don't print"), ("\ufeffhttp://a/", "don't print"),
        ("http://a/" + "x" * 100_000, "`100009` characters"), ("http://" + "9" * 100_000, "characters"),
    ],
)  # fmt: skip
def test_what_is_no_url_to_fetch(text: str, says: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parsed(text)

    assert says in caught.value.message
    assert len(caught.value.message) < 250
    assert "hunter2" not in caught.value.message
    assert caught.value.param is None


def spellings(address: IPv4Address, rng: random.Random) -> list[str]:
    """`address` as inet_aton reads it: in one to four parts, each in a base of its own."""
    value, found = int(address), []
    for num_parts in (1, 2, 3, 4):
        leading = [value >> 8 * (3 - index) & 255 for index in range(num_parts - 1)]
        last = value & (1 << 8 * (5 - num_parts)) - 1
        for _ in range(4):
            found.append(
                ".".join(rng.choice([str, hex, "0{:o}".format, "0X{:X}".format, "0x000{:x}".format])(n) for n in (*leading, last))
            )
    return [*found, found[-1] + ".", str(address).translate(str.maketrans("0123456789.", "０１２３４５６７８９。"))]


@pytest.mark.parametrize(
    "network",
    [
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "224.0.0.0/3",
        "0.0.0.0/0",
    ],
)
def test_every_spelling_of_an_address_is_that_address(network: str) -> None:
    rng = random.Random(network)
    addresses = IPv4Network(network)
    for _ in range(40):
        address = addresses[rng.randrange(addresses.num_addresses)]
        for spelling in spellings(address, rng):
            assert address == parsed(f"http://{spelling}/x").host, spelling
            assert network == "0.0.0.0/0" or not AddressRule().permits(address)


PIECES = st.sampled_from(
    ["http://", "https://", "HTTP:", "//", "/", "\\", "@", ":", "[", "]", "%", "%25", ".", "..", "::", "::1", "127", "0x7f", "017", "1", "#", "?",
     "80", "example.com", "xn--", "xn--a", "ß", "。", "１", "\u0301", "\u200d", "ب", "א", "-", "_", "a" * 64, " ", "\n", "\ud800", "ﷺ", "İ"]
)  # fmt: skip


@given(
    st.one_of(
        st.text(), st.lists(PIECES, max_size=8).map("".join), st.lists(PIECES, max_size=8).map(lambda p: "http://" + "".join(p))
    )
)
def test_any_text_is_a_url_or_a_client_error(text: str) -> None:
    try:
        url = parsed(text)
    except InvalidRequestError:
        return
    assert url.text.isascii()
    assert " " not in url.text
    assert url.text.isprintable()
    assert url == parsed(url.text)
    assert url.target.startswith("/")
    assert url.port in PORTS


def test_a_long_url_is_read() -> None:
    text = "http://a/" + "x" * (MAX_URL_CHARS - 9)

    assert text == parsed(text).text


def test_secrets_are_not_in_a_repr() -> None:
    assert "ImageUrl(http://a/…)" == repr(parsed("http://a/path?key=secret"))


@pytest.mark.parametrize(
    ("host", "entries", "is_in"),
    [
        ("example.com", ["example.com"], True),
        ("a.example.com", ["example.com"], False),
        ("example.com", [".example.com"], True),
        ("a.b.example.com", [".example.com"], True),
        ("notexample.com", [".example.com", "example.com"], False),
        ("example.com.evil.net", [".example.com", "example.com"], False),
        ("xn--bcher-kva.de", ["bücher.de"], True),
        ("a.xn--bcher-kva.de", [".BÜCHER.de"], True),
        ("93.184.216.34", ["93.184.216.34"], True),
        ("example.com", ["\u0301bad", "a.com"], False),
        ("example.com", [], False),
    ],
)
def test_lists_of_hosts(host: str, entries: list[str], is_in: bool) -> None:
    assert is_in == is_listed(host, entries)
