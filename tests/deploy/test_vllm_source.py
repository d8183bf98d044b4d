"""Where the source of vLLM is fetched from, on an index of our own."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def archive_of(files: dict[str, str]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
        link = tarfile.TarInfo("vllm-0.33.0/vllm/link.py")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return written.getvalue()


ARCHIVE = archive_of({
    "vllm-0.33.0/vllm/__init__.py": "here = 1",
    "vllm-0.33.0/vllm/config/model.py": "here = 2",
    "vllm-0.33.0/vllm/kernels/attention.cu": "not text for Python",
    "vllm-0.33.0/tests/test_it.py": "not of the package",
    "vllm-0.33.0/vllm/../../outside.py": "not inside",
})  # fmt: skip


class Index:
    """A package index; `archive` is what it has, `asked` the paths that were asked for, with their authorization."""

    def __init__(self, page: str = '<a href="../../files/vllm-0.33.0.tar.gz#sha256=0&amp;x=1">vllm</a>') -> None:
        self.page, self.archive, self.asked = page, ARCHIVE, list[tuple[str, str | None]]()
        self.moved: dict[str, str] = {}
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.asked.append((self.path, self.headers.get("authorization")))
                body = {"/simple/vllm/": index.page.encode(), "/files/vllm-0.33.0.tar.gz": index.archive}.get(self.path)
                self.send_response(302 if self.path in index.moved else 404 if body is None else 200)
                if self.path in index.moved:
                    self.send_header("Location", index.moved[self.path])
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def url(self, user: str = "") -> str:
        return f"http://{user}127.0.0.1:{self.server.server_port}/simple"


@pytest.fixture
def index() -> Iterator[Index]:
    index = Index()
    yield index
    index.server.shutdown()
    index.server.server_close()


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, for an archive of ours."""
    spec = importlib.util.spec_from_file_location("vllm_source", ROOT / "scripts" / "vllm_source.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SHA256", hashlib.sha256(ARCHIVE).hexdigest())
    return module


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_packages_python_files_are_unpacked_once(
    source: ModuleType, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "pip_config", lambda: {"index-url": [index.url()]})
    folder = tmp_path / "cache" / "vllm"
    assert 0 == source.main(folder)
    assert [".complete", "vllm/__init__.py", "vllm/config/model.py"] == files(folder)
    assert ["vllm"] == [path.name for path in (tmp_path / "cache").iterdir()]
    assert ["/simple/vllm/", "/files/vllm-0.33.0.tar.gz"] == [path for path, _ in index.asked]
    assert 0 == source.main(folder)
    assert 2 == len(index.asked)


def test_another_archive_is_not_unpacked(
    source: ModuleType, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    index.archive = archive_of({"vllm-0.33.0/vllm/__init__.py": "not what was published"})
    monkeypatch.setattr(source, "pip_config", lambda: {"index-url": [index.url("user:secret@")]})
    folder = tmp_path / "vllm"
    assert 1 == source.main(folder)
    assert [] == files(tmp_path)
    said = capsys.readouterr().err
    assert "is not the one that was published" in said
    assert "error: no package index has vllm-0.33.0.tar.gz" in said
    assert "secret" not in said


def test_indexes_are_asked_one_after_another_with_their_passwords(
    source: ModuleType, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = Index(page="<a href='vllm-0.32.0.tar.gz'>vllm</a>")
    places = {"index-url": ["file:///nowhere/simple"], "extra-index-url": [empty.url(), index.url("user:pass%40word@")]}
    monkeypatch.setattr(source, "pip_config", lambda: places)
    assert 0 == source.main(tmp_path / "vllm")
    empty.server.shutdown()
    empty.server.server_close()
    assert [("/simple/vllm/", None)] == empty.asked
    authorization = f"Basic {base64.b64encode(b'user:pass@word').decode()}"
    assert [("/simple/vllm/", authorization), ("/files/vllm-0.33.0.tar.gz", authorization)] == index.asked  # the same host


def test_where_an_index_sends_on_to_is_not_told_its_password(
    source: ModuleType, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Index()
    index.moved = {"/files/vllm-0.33.0.tar.gz": f"http://127.0.0.1:{storage.server.server_port}/files/vllm-0.33.0.tar.gz"}
    monkeypatch.setattr(source, "pip_config", lambda: {"index-url": [index.url("user:secret@")]})
    assert 0 == source.main(tmp_path / "vllm")
    storage.server.shutdown()
    storage.server.server_close()
    assert all(authorization for _, authorization in index.asked)
    assert [("/files/vllm-0.33.0.tar.gz", None)] == storage.asked


def test_a_folder_of_archives_comes_first(source: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "vllm-0.33.0.tar.gz").write_bytes(ARCHIVE)
    monkeypatch.setattr(
        source, "pip_config", lambda: {"find-links": [str(tmp_path / "links")], "index-url": ["http://127.0.0.1:1"]}
    )
    assert 0 == source.main(tmp_path / "vllm")
    assert "vllm/__init__.py" in files(tmp_path / "vllm")


def test_pip_says_where_packages_are(source: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://one/simple\nextra-index-url = https://two/simple https://three/simple\n")
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    found = source.pip_config()
    assert (["https://one/simple"], ["https://two/simple", "https://three/simple"]) == (
        found["index-url"],
        found["extra-index-url"],
    )
    monkeypatch.setenv("PIP_INDEX_URL", "https://four/simple")
    assert ["https://four/simple"] == source.pip_config()["index-url"]
