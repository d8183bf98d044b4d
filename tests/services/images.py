"""Image files, and a server of them on an address that stands in for a public one."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from PIL import Image

PUBLIC = "127.7.7.7"
"""Of this machine, so that it can be served from; `NETWORK` lets the gateway take it for public."""

NETWORK = "127.7.7.0/24"


def encoded(width: int, height: int, kind: str = "PNG", colour: tuple[int, ...] = (200, 30, 90)) -> bytes:
    """An image file of one colour."""
    file = io.BytesIO()
    Image.new("RGBA" if len(colour) == 4 else "RGB", (width, height), colour).save(file, kind)
    return file.getvalue()


def data_url(file: bytes, media_type: str = "image/png") -> str:
    """The file as a `data:` URL."""
    return f"data:{media_type};base64,{base64.b64encode(file).decode()}"


@dataclass
class ImageServer:
    """Serves `files` by path; `requests` are (path, headers) of what came."""

    files: dict[str, bytes]
    port: int = 0
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def url(self, path: str, host: str = PUBLIC) -> str:
        return f"http://{host}:{self.port}{path}"


@contextmanager
def image_server(files: dict[str, bytes]) -> Iterator[ImageServer]:
    """A running `ImageServer`."""
    served = ImageServer(files)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.requests.append((self.path, dict(self.headers)))
            file = served.files.get(self.path)
            self.send_response(404 if file is None else 200)
            self.send_header("content-type", "image/png")
            self.send_header("content-length", str(len(file or b"")))
            self.end_headers()
            self.wfile.write(file or b"")

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer((PUBLIC, 0), Handler) as server:
        served.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield served
        server.shutdown()
        thread.join()
