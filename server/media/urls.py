"""The URL of an image, read strictly and taken apart once: what is connected to and what is sent are made from these parts.

Role: first step of `fetch.py`, for what a client sent and for what a redirect leads to. No other reader of the URL comes after
this one, so there is nobody to read it differently.
Must not: repeat a URL in a message; its path, query and credentials may be secrets.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Final
from urllib.parse import quote

from server.errors import InvalidRequestError
from server.media.addresses import Address
from server.media.hosts import parse_host
from server.quoting import shown

MAX_URL_CHARS: Final = 8192
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_AUTHORITY: Final = re.compile(r"//([^/?#]*)([^#]*)")
_HOST_AND_PORT: Final = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::([0-9]{0,5}))?", re.ASCII)
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_PRINTABLE: Final = "".join(map(chr, range(0x21, 0x7F)))


@dataclass(slots=True, frozen=True)
class ImageUrl:
    """An http or https URL. `host`: a name or an address; `target`: path and query, ASCII, as they are sent."""

    scheme: str
    host: str | Address
    port: int
    target: str

    @property
    def host_name(self) -> str:
        """The host as text, an IPv6 address without brackets."""
        return str(self.host)

    @property
    def host_header(self) -> str:
        """Host and port, as requests name them."""
        host = f"[{self.host}]" if isinstance(self.host, IPv6Address) else self.host_name
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def text(self) -> str:
        """The whole URL, in one spelling."""
        return f"{self.scheme}://{self.host_header}{self.target}"

    def __repr__(self) -> str:
        return f"ImageUrl({self.scheme}://{self.host_header}/…)"


def parse_url(text: str, *, ports: Collection[int]) -> ImageUrl:
    """Take `text` apart. Raises `InvalidRequestError` without `param`, and nothing else."""
    if len(text) > MAX_URL_CHARS:
        _scheme(text)  # what is no URL at all has another cure
        raise InvalidRequestError(f"a URL of `{len(text)}` characters is longer than `{MAX_URL_CHARS}`; send the image as base64")
    if text.strip() != text:
        raise InvalidRequestError("the URL has blanks at its beginning or end; remove them")
    if "\\" in text or " " in text or not text.isprintable():
        raise InvalidRequestError("the URL has spaces, backslashes or characters that don't print; percent-encode them")
    scheme, rest = _scheme(text)
    authority = _AUTHORITY.fullmatch(rest.partition("#")[0])
    if authority is None:
        raise InvalidRequestError(f"the URL has no host; write `{scheme}://` and a host")
    if "@" in authority[1]:
        raise InvalidRequestError("the URL has credentials in it, which are not sent; send a URL without `@` before its path")
    host_and_port = _HOST_AND_PORT.fullmatch(authority[1])
    if host_and_port is None:
        raise InvalidRequestError(f"`{shown(authority[1])}` in the URL is no host and port; write `host:port` or `[IPv6]:port`")
    host = _host(host_and_port[1])
    port = int(host_and_port[2] or _DEFAULT_PORTS[scheme])
    if port not in ports:
        raise InvalidRequestError(f"images are not fetched from port `{port}`; use one of {_listed(ports)}")
    target = quote(authority[2], safe=_PRINTABLE)
    return ImageUrl(scheme, host, port, target if target.startswith("/") else "/" + target)


def _scheme(text: str) -> tuple[str, str]:
    """Scheme, in lower case, and what comes after its colon."""
    match = _SCHEME.match(text)
    if match is None:
        raise InvalidRequestError("the image's URL has no scheme; send an `https://` URL, or base64 as `data:image/png;base64,…`")
    scheme = match[1].lower()
    if scheme not in _DEFAULT_PORTS:
        raise InvalidRequestError(f"`{shown(scheme)}:` URLs are not fetched; send an `https://`, `http://` or base64 `data:` URL")
    return scheme, text[match.end() :]


def _host(text: str) -> str | Address:
    if not text:
        raise InvalidRequestError("the URL has no host; write one after `//`")
    try:
        return parse_host(text)
    except ValueError as error:
        # What IDNA says of a name repeats all of it.
        reason = "is no host name" if isinstance(error, UnicodeError) else str(error)
        raise InvalidRequestError(f"the URL's host `{shown(text)}` {reason}") from None


def _listed(ports: Collection[int]) -> str:
    return ", ".join(f"`{port}`" for port in ports)
