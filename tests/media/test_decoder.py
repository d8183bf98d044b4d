"""The decoding process gives way to everything else."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from server.media.decoder import NICENESS
from server.media.worker import decoder_command


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="Linux does not group processes by sessions here")
def test_its_session_is_as_nice_as_it_is() -> None:
    """Niceness counts within a session only where Linux shares CPUs between sessions, and this process has one of its own."""
    ours = Path("/proc/self/autogroup").read_text(encoding="ascii")
    channel, theirs = socket.socketpair()
    with channel, theirs:
        process = subprocess.Popen(decoder_command(), stdin=theirs, env={}, cwd="/", start_new_session=True)
        channel.sendall(b'{"do": "forget"}\n')
        assert b"{}\n" == channel.recv(100)
        group = Path(f"/proc/{process.pid}/autogroup").read_text(encoding="ascii")
        process.kill()
        process.wait()
    assert f"nice {NICENESS}" == group.partition(" ")[2].strip()
    assert ours == Path("/proc/self/autogroup").read_text(encoding="ascii")
