"""Who sends long conversations, in a process of its own: `python -m bench.prompt_load --port PORT --key KEY`.

For each line of standard input, `next SECONDS` or `cold SECONDS`, sends one request after the other for so long, and prints what
became of them. `next` are the next turns of one conversation, which the server has seen before; of `cold` ones it has seen no
text.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
from statistics import median
from typing import Any

from bench.conversations import Talk, body_of, num_turns_of
from bench.image_load import be_nice


class Sender:
    """Sends one request at a time."""

    def __init__(self, port: int, key: str, num_tokens: int, rest_s: float) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        self._talk = Talk()
        self._num_turns = num_turns_of(num_tokens)
        self._messages = self._talk.messages(self._num_turns)
        self._num_cold = 0
        self._rest_s = rest_s

    def ask(self, body: bytes) -> float:
        """Seconds until the answer is there. Raises `RuntimeError` for one that is none."""
        begun_s = time.monotonic()
        self._connection.request("POST", "/v1/chat/completions", body, self._headers)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != 200 or not text.endswith(b"data: [DONE]\n\n"):
            raise RuntimeError(f"{answer.status} {text[-300:]!r}")
        return time.monotonic() - begun_s

    def send(self, kind: str, seconds: float) -> dict[str, Any]:
        """Send for `seconds`; how long answers took."""
        make = self._next if kind == "next" else self._cold
        if kind == "next":
            self.ask(body_of(self._messages))
        times_s: list[float] = []
        num_bytes = 0
        until_s = time.monotonic() + seconds
        while not times_s or time.monotonic() < until_s:
            body = make()
            num_bytes = len(body)
            time.sleep(self._rest_s)
            times_s.append(self.ask(body))
        return {"num": len(times_s), "median_s": median(times_s), "least_s": min(times_s), "num_bytes": num_bytes}

    def close(self) -> None:
        """Ask no more."""
        self._connection.close()

    def _next(self) -> bytes:
        self._messages[-1:] = self._talk.turn(self._num_turns)
        self._num_turns += 1
        self._messages.append(self._talk.question(self._num_turns))
        return body_of(self._messages)

    def _cold(self) -> bytes:
        self._num_cold += 1
        return body_of(self._talk.messages(self._num_turns, mark=f"cold {self._num_cold}"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--rest-s", type=float, default=0.0)
    parser.add_argument("--nice", type=int, default=0)
    options = parser.parse_args()
    be_nice(options.nice)
    sender = Sender(options.port, options.key, options.tokens, options.rest_s)
    print("ready", flush=True)
    for line in sys.stdin:
        kind, seconds = line.split()
        print(json.dumps(sender.send(kind, float(seconds))), flush=True)


if __name__ == "__main__":
    main()
