"""A fake engine core in a process of its own, which speaks the protocol of the vLLM that it imports to a frontend over ZeroMQ.

    python -m bench.core_process IN OUT --model DIR --plan FILE

`IN` and `OUT` are the frontend's sockets, paths. For what can't have a fake core in its own process: vLLM's Rust frontend; and,
so that it is compared with its like, the gateway beside it. At full speed it is `WINDOW_STEPS` ahead of the client at most.
Source: vllm/v1/engine/core.py, `EngineCoreProc.process_input_sockets` and `process_output_sockets`; 0.32 and 0.33.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import vllm
import zmq
from vllm.v1.engine import EngineCoreOutputs, EngineCoreReadyResponse, EngineCoreRequest, EngineCoreRequestType, UtilityOutput
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder, UtilityResult

from bench.core_answers import Answer, answers_of
from bench.core_plan import CorePlan
from bench.fake_core import Running
from bench.served import MAX_MODEL_LEN, MAX_STREAMS
from server.vocabulary.load import load

WINDOW_STEPS: Final = 3.0
LOST_S: Final = 0.5
"""What was merged on the way counts too few; after so long without an arrival the count begins anew."""
_UTILITIES: Final[dict[str, Any]] = {"get_supported_tasks": ("generate",), "is_scheduler_paused": False, "is_sleeping": False,
                                     "get_weight_version": "fake"}  # fmt: skip


def _hello() -> Any:
    values: dict[str, Any] = {
        "max_model_len": MAX_MODEL_LEN, "num_gpu_blocks": 100_000, "block_size": 16, "dp_stats_address": None,
        "dtype": "bfloat16", "vllm_version": vllm.__version__, "world_size": 1, "data_parallel_size": 1,
        "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "decode_context_parallel_size": 1, "data_parallel_rank": 0,
        "max_num_seqs": MAX_STREAMS, "max_num_batched_tokens": 8192, "instance_id": "fake", "supports_lora": False,
        "max_loras": 0, "kv_cache_size_tokens": 1_600_000, "kv_cache_max_concurrency": 195.0,
    }  # fmt: skip
    known = {field.name for field in dataclasses.fields(EngineCoreReadyResponse)}
    return EngineCoreReadyResponse(**{name: value for name, value in values.items() if name in known})


class CoreProcess:
    """One core, and the sockets to its frontend."""

    def __init__(self, in_path: str, out_path: str, answers: list[Answer], plan: CorePlan) -> None:
        context = zmq.Context()
        self._requests = context.socket(zmq.DEALER)
        self._requests.setsockopt(zmq.IDENTITY, (0).to_bytes(2, "little"))
        self._outputs = context.socket(zmq.PUSH)
        for socket, path in ((self._requests, in_path), (self._outputs, out_path)):
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.connect(f"ipc://{path}")
        self._requests.send(msgspec.msgpack.encode(_hello()))
        self._poller = zmq.Poller()
        self._poller.register(self._requests, zmq.POLLIN)
        self._encoder = MsgpackEncoder()
        self._decode_request = MsgpackDecoder(EngineCoreRequest).decode
        self._decode = MsgpackDecoder().decode
        self._answers = answers
        self._plan = plan
        self._read_plan = plan.reader
        self._running: dict[str, Running] = {}
        self._num_sent = 0  # tokens, counted on from what had been delivered when nothing was under way
        self._next_step_s = 0.0

    def run(self) -> None:
        """Until the process is ended."""
        while True:
            self._receive()
            if not self._running:
                self._poller.poll(1000)
                self._num_sent = self._plan.num_delivered
                continue
            steps_per_s, num_tokens, _, most_tokens = self._read_plan()
            if steps_per_s:
                self._wait_for_step(steps_per_s)
            else:
                self._wait_for_client()
            running = {key: of for key, of in self._running.items() if not most_tokens or of.num_said < most_tokens}
            if running:
                self._step(running, num_tokens)
            else:
                self._poller.poll(100)

    def _step(self, running: dict[str, Running], num_tokens: int) -> None:
        outputs = [of.step(request_id, num_tokens) for request_id, of in running.items()]
        self._num_sent += sum(len(output.new_token_ids) for output in outputs)
        ended = {request_id for request_id, of in running.items() if of.is_done}
        for request_id in ended:
            del self._running[request_id]
        stats = SchedulerStats(num_running_reqs=len(self._running))
        self._send(EngineCoreOutputs(outputs=outputs, scheduler_stats=stats, finished_requests=ended or None))

    def _wait_for_step(self, steps_per_s: float) -> None:
        interval_s, now_s = 1 / steps_per_s, time.monotonic()
        self._next_step_s = max(self._next_step_s + interval_s, now_s - interval_s)
        while (left_s := self._next_step_s - time.monotonic()) > 0:
            if self._poller.poll(max(1, int(left_s * 1000))):
                self._receive()

    def _wait_for_client(self) -> None:
        begun_s = time.monotonic()
        while self._running and self._num_sent - self._plan.num_delivered > WINDOW_STEPS * len(self._running):
            if self._poller.poll(0):
                self._receive()
            time.sleep(0.00005)
            if time.monotonic() - begun_s > LOST_S:
                self._num_sent = self._plan.num_delivered
                return

    def _receive(self) -> None:
        while True:
            try:
                kind, *frames = self._requests.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            match EngineCoreRequestType(bytes(kind)):
                case EngineCoreRequestType.ADD:
                    request = self._decode_request(frames)
                    self._running[request.request_id] = Running(request, self._answers, self._read_plan()[2])
                case EngineCoreRequestType.ABORT:
                    for request_id in self._decode(frames):
                        self._running.pop(request_id, None)
                case EngineCoreRequestType.UTILITY:
                    _, call_id, method, _ = self._decode(frames)
                    result = UtilityResult(_UTILITIES.get(method))
                    self._send(EngineCoreOutputs(utility_output=UtilityOutput(call_id, result=result)))

    def _send(self, outputs: Any) -> None:
        self._outputs.send_multipart(self._encoder.encode(outputs))


def main() -> None:
    """Run until ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("in_path")
    parser.add_argument("out_path")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--plan", type=Path, required=True)
    options = parser.parse_args()
    core = CoreProcess(options.in_path, options.out_path, answers_of(load(options.model)), CorePlan(options.plan))
    print(f"ready {vllm.__version__}", flush=True)
    core.run()


if __name__ == "__main__":
    main()
