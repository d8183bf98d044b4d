"""What a gateway told, told again with one metric renamed: one instance for each metric that there is."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from server.metrics import catalog
from tests.services.prometheus import Prometheus, prometheus

AS_IT_IS = "none"
"""The instance where nothing was renamed."""


def renamed(text: str, name: str) -> str:
    """The text of a scrape in which the catalog's metric `name` has another name."""
    found = re.compile(rf"\b{catalog.PREFIX}{name}(?=(_bucket|_sum|_count)?[ {{])")
    return found.sub(f"{catalog.PREFIX}new_{name}", text)


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A scraper that leaves in the middle, at the end of a test, is none."""


@contextmanager
def replayed(folder: Path, texts: Sequence[str]) -> Iterator[Prometheus]:
    """A Prometheus that has seen all `texts`, one after the other, of every instance: each is called as the metric it lacks."""
    names = [AS_IT_IS, *(metric.name for metric in catalog.CATALOG)]
    bodies = [{name: renamed(text, name).encode() for name in names} for text in texts]
    now = [bodies[0]]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = now[0][self.path.removeprefix("/")]
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        target = f"127.0.0.1:{server.server_port}"
        with prometheus(folder, [target], paths={name: f"/{name}" for name in names}) as watching:
            for told in bodies:
                now[0] = told
                watching.wait_scraped()
            yield watching
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
