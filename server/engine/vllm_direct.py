"""Tokens that are taken in the turn of the loop in which vLLM hands them out.

Role: beside `vllm.py`. vLLM makes two objects of each step's tokens of a request, puts them where the request's task finds them,
and wakes it. Where the task has read all that came before, and what reads it would do so at once, neither is needed.
Invariant: tokens go one way or the other, in order: nothing is taken while something that came before is still to be read.
Must not: raise into vLLM's output task, which would end every request.
Source: vllm/v1/engine/output_processor.py, `RequestState.make_request_output` (0.32 and 0.33).
"""

from __future__ import annotations

from typing import Any

from server.engine.base import Take


class TakeFailedError(Exception):
    """Stands for what `take` raised, on the way through vLLM, whose frames would keep that and all its own."""


class Handover:
    """Of one request. `is_awaited`: its task waits for what comes next."""

    __slots__ = ("_collector", "_failure", "_make", "_state", "_take", "is_awaited")

    def __init__(self, take: Take | None) -> None:
        self._take = take
        self._state: Any = None
        self.is_awaited = False
        self._failure: Exception | None = None

    def begin(self, llm: Any, request_id: str) -> None:
        """The first output has come. Where vLLM is not as it is known to be, or holds outputs back, all go the usual way."""
        if self._take is None:
            return
        processor = llm.output_processor
        internal_ids = getattr(processor, "external_req_ids", {}).get(request_id, ())
        state = processor.request_states.get(internal_ids[0]) if len(internal_ids) == 1 else None
        if state is None or state.stream_interval > 1 or not hasattr(state.queue, "output"):
            return
        self._state, self._collector, self._make = state, state.queue, state.make_request_output
        state.make_request_output = self._make_output

    def end(self) -> None:
        """No output is wanted any more."""
        self.is_awaited = False
        if self._state is not None:
            del self._state.make_request_output
            self._state = self._collector = self._make = None

    @property
    def has_failed(self) -> bool:
        """Whether `take` raised, which ends the request."""
        return self._failure is not None

    def raise_failure(self) -> None:
        """Raise what `take` raised, once, where it has; it must not be kept here, where its traceback leads."""
        if self._failure is not None:
            try:
                raise self._failure
            finally:
                self._failure = None

    def _make_output(
        self, new_token_ids: list[int], pooling_output: Any = None, finish_reason: Any = None, *rest: Any, **named: Any
    ) -> Any:
        """In the place of vLLM's: None where the tokens were taken."""
        if self.is_awaited and finish_reason is None and new_token_ids and self._collector.output is None:
            assert self._take is not None
            try:
                if self._take(new_token_ids):
                    return None
            except Exception as error:  # noqa: BLE001 - raised where the request's task waits
                self._failure, self.is_awaited = error, False
                self._collector.put(TakeFailedError())
                return None
        return self._make(new_token_ids, pooling_output, finish_reason, *rest, **named)
