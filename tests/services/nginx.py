"""An nginx of the tests' own: Debian's package, with the configuration that ships, on free ports, in a temporary folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

SHIPPED = Path(__file__).resolve().parents[2] / "deploy" / "nginx" / "k3-gateway.conf"
START_S = 20.0
MAIN = """\
{user}
daemon off;
pid {folder}/pid;
error_log {folder}/error.log;
worker_processes 2;
events {{ worker_connections 4096; }}
http {{
    log_format upstreams '$msec $request_time $status $http_x_request_id $upstream_addr $upstream_status $upstream_response_time';
    access_log {folder}/access.log upstreams;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/k3-gateway.conf;
}}
"""


def program() -> str:
    """Where nginx is; skips where it is not installed."""
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/sbin")
    if found is None:
        pytest.skip("nginx is not installed")
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def write_config(folder: Path, replicas: Sequence[int], port: int) -> Path:
    """The configuration that ships, with other ports, and what a machine's own nginx has around it."""
    text = SHIPPED.read_text(encoding="utf-8")
    changes = {f"127.0.0.1:{8001 + number} ": f"127.0.0.1:{replica} " for number, replica in enumerate(replicas)}
    for old, new in {**changes, "listen 8080;": f"listen 127.0.0.1:{port};"}.items():
        assert 1 == text.count(old), old
        text = text.replace(old, new)
    (folder / "k3-gateway.conf").write_text(text, encoding="utf-8")
    user = "user root;" if os.getuid() == 0 else ""  # else its workers could not use the folder
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder, user=user), encoding="utf-8")
    return folder / "nginx.conf"


@contextmanager
def nginx(folder: Path, replicas: Sequence[int]) -> Iterator[int]:
    """A running server in front of gateways at these two ports of this machine; yields its own."""
    port = free_port()
    command = [program(), "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(write_config(folder, replicas, port))]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        end_s = time.monotonic() + START_S
        while True:
            assert process.poll() is None, (folder / "error.log").read_text()
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert time.monotonic() < end_s, "nginx did not start"
                time.sleep(0.02)
        yield port
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()
