"""A Prometheus of the tests' own: Debian's package, on a free port, in a temporary folder, with the rules that ship."""

from __future__ import annotations

import math
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

SHIPPED = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
START_S, SCRAPED_S = 30.0, 30.0
INTERVAL = "500ms"
"""Of scrapes and of rules; a scrape may take as long."""


def needs(program: str) -> str:
    """Where `program` is; skips where it is not installed."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


@dataclass(frozen=True)
class Sample:
    """One series of an answer, with its values by time, the last one last. Values that are no number are left out."""

    labels: dict[str, str]
    values: list[float]

    @property
    def last(self) -> float:
        return self.values[-1]


class Prometheus:
    """One server. `targets`: `host:port` of gateways; `key`: what opens their `/metrics`, where that takes one.

    `paths`: of each instance that the one target stands for, where its metrics are. The configuration is the one that ships, with
    other targets, and everything faster.
    """

    def __init__(
        self, folder: Path, targets: Sequence[str], *, key: str | None = None, paths: Mapping[str, str] | None = None
    ) -> None:
        self.started_s = time.time()
        self._num_targets = len(paths or targets)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        path = folder / "prometheus.yml"
        path.write_text(yaml.safe_dump(_config(folder, targets, key, paths or {})), encoding="utf-8")
        command = [needs("prometheus"), f"--config.file={path}", f"--storage.tsdb.path={folder / 'data'}"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(command, cwd=folder, stdout=self._log, stderr=self._log)
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
        try:
            self._wait_ready(folder / "log")
        except BaseException:
            self.stop()
            raise

    def _wait_ready(self, log: Path) -> None:
        end_s = time.monotonic() + START_S
        while True:
            assert self._process.poll() is None, log.read_text()
            try:
                if self.http.get("/-/ready").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            assert time.monotonic() < end_s, "Prometheus did not start:\n" + log.read_text()
            time.sleep(0.02)

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        finally:
            self._process.kill()
            self.http.close()
            self._log.close()

    def get(self, path: str, **fields: Any) -> Any:
        """What the API answers; its errors are the test's."""
        answer = self.http.get(f"/api/v1/{path}", params=fields).json()
        assert "success" == answer["status"], (answer.get("error"), fields)
        return answer["data"]

    def wait_scraped(self, num: int = 2) -> None:
        """Until all that was there at the call is in the store: every target was scraped `num` times since, and rules have run on it."""
        for _ in range(num):
            since_s = time.time()
            self._wait(lambda: self._all_since("targets", since_s), "not all targets were scraped")  # noqa: B023  # called at once
        since_s = time.time()
        self._wait(lambda: self._all_since("rules", since_s), "not all rules were evaluated")

    def _all_since(self, what: str, since_s: float) -> bool:
        data = self.get(what)
        if what == "targets":
            found = [(target["lastScrape"], target["health"]) for target in data["activeTargets"]]
            return len(found) == self._num_targets and all(_unix_s(at) > since_s and health == "up" for at, health in found)
        return all(_unix_s(group["lastEvaluation"]) > since_s for group in data["groups"])

    def _wait(self, is_so: Any, otherwise: str) -> None:
        end_s = time.monotonic() + SCRAPED_S
        while not is_so():
            assert time.monotonic() < end_s, f"{otherwise}: {self.get('targets')['activeTargets']}"
            time.sleep(0.05)

    def now(self, query: str) -> list[Sample]:
        """The answer as it is now, without values that are no number."""
        result = self.get("query", query=query)
        if result["resultType"] == "scalar":
            return _samples([{"metric": {}, "values": [result["result"]]}])
        return _samples([{"metric": one["metric"], "values": [one["value"]]} for one in result["result"]])

    def course(self, query: str, step_s: float = 1.0) -> list[Sample]:
        """The answer over all the time that this server has run."""
        result = self.get("query_range", query=query, start=self.started_s, end=time.time(), step=step_s)
        return _samples(result["result"])

    def value(self, query: str) -> float:
        """Of a query with one answer."""
        (sample,) = self.now(query)
        return sample.last

    def by(self, label: str, query: str) -> Mapping[str, float]:
        """Of a query with one answer for each value of `label`."""
        return {sample.labels[label]: sample.last for sample in self.now(query)}


def _samples(result: Sequence[Any]) -> list[Sample]:
    found = [
        Sample(one["metric"], [number for _, text in one["values"] if not math.isnan(number := float(text))]) for one in result
    ]
    return [sample for sample in found if sample.values]


def _config(folder: Path, targets: Sequence[str], key: str | None, paths: Mapping[str, str]) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((SHIPPED / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL, "evaluation_interval": INTERVAL}
    config["rule_files"] = [str(SHIPPED / file) for file in config["rule_files"]]
    (job,) = config["scrape_configs"]
    job["static_configs"] = [
        {"targets": list(targets), "labels": {"instance": instance, "__metrics_path__": path}} for instance, path in paths.items()
    ] or [{"targets": list(targets)}]
    if key is not None:
        (folder / "key").write_text(key, encoding="utf-8")
        job["authorization"] = {"type": "Bearer", "credentials_file": str(folder / "key")}
    return config


def _unix_s(text: str) -> float:
    """Of RFC 3339 with nanoseconds, which `datetime` takes from Python 3.11 on, but for the ninth digit."""
    return datetime.fromisoformat(text).timestamp()


@contextmanager
def prometheus(folder: Path, targets: Sequence[str], **options: Any) -> Iterator[Prometheus]:
    """A running server; `options` as of `Prometheus`."""
    server = Prometheus(folder, targets, **options)
    try:
        yield server
    finally:
        server.stop()
