"""Starting vLLM: environment, import, engine process, in that order.

Role: the slow part of `VllmEngine.open`: tens of seconds, minutes for a large model.
Invariant: vLLM's constructor blocks, so it runs in a thread of its own and the event loop stays free; a start that nobody waits
for any more is shut down as soon as it is up, and never holds up the end of the process.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from server import environment
from server.engine import vllm_core, vllm_plugin
from server.engine.base import EngineStats
from server.engine.profiles import Profile, ProfileError
from server.engine.vllm_guard import kill_families
from server.engine.vllm_stats import recorder_class

PROGRESS_INTERVAL_S = 2.0


class _Handover:
    """Carries the engine, or the error in its place, from the thread that builds it to the loop that waits.

    It keeps nothing: frames of the thread outlive it in tracebacks that vLLM holds, and must not hold the engine with them.
    """

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._outcomes: list[Any] = []
        self._abandoned = False

    def give(self, outcome: Any) -> None:
        """In the thread."""
        self._outcomes.append(outcome)
        if self._abandoned:
            self.abandon()
        else:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.ready.set)

    def take(self) -> Any:
        """Once `ready`."""
        return self._outcomes.pop()

    def abandon(self) -> None:
        """Nobody waits any more; an engine that has come or is still to come is shut down."""
        self._abandoned = True
        with suppress(IndexError):
            if not isinstance(outcome := self._outcomes.pop(), Exception):
                outcome.shutdown(timeout=0)


@dataclass(slots=True, frozen=True)
class Attachment:
    """To an engine core that is another process's: as number `process` of `num_processes`, over what comes through `end`."""

    end: socket.socket
    process: int
    num_processes: int


async def start(
    profile: Profile,
    model_path: Path,
    model_name: str,
    stats: EngineStats,
    progress: Callable[[str], None],
    attachment: Attachment | None = None,
) -> Any:
    """A running `AsyncLLM`, with an engine core of its own, or attached to another's. `progress` gets a line every two seconds.

    Raises `ProfileError`, and whatever vLLM raises.
    """
    environment.apply(profile.environment)
    handover = _Handover()
    arguments = (profile, model_path, model_name, stats, attachment)
    threading.Thread(target=_build_for, args=(handover, *arguments), name="engine-start", daemon=True).start()
    began_s = time.monotonic()
    try:
        while not handover.ready.is_set():
            progress(f"starting the engine ({profile.name}): {time.monotonic() - began_s:.0f} s")
            with suppress(TimeoutError):
                await asyncio.wait_for(handover.ready.wait(), PROGRESS_INTERVAL_S)
        llm = handover.take()
    except asyncio.CancelledError:
        if attachment is None:
            _end_what_loads()
        raise
    finally:
        handover.abandon()
    if isinstance(llm, Exception):
        raise llm
    # Built without a loop, it listens to its engine process only from its first call on.
    await llm.get_supported_tasks()
    progress(f"the engine is up after {time.monotonic() - began_s:.0f} s")
    return llm


def _end_what_loads() -> None:
    """Kill the engine's processes: as long as they load, which may be an hour, they do not notice that nobody waits any more."""
    kill_families(process.pid for process in multiprocessing.active_children() if process.pid is not None)


def _build_for(handover: _Handover, *arguments: Any) -> None:
    """The thread's body."""
    # The engine's processes inherit this thread's signal mask: Ctrl-C in a terminal goes to all of them, and must reach only the
    # gateway, which lets running requests finish before it ends the engine. The tracker first: starting it lifts the mask.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        handover.give(_build(*arguments))
    except Exception as error:  # noqa: BLE001 - raised again where the start is awaited
        handover.give(error)


def _build(profile: Profile, model_path: Path, model_name: str, stats: EngineStats, attachment: Attachment | None) -> Any:
    from vllm.v1.engine.async_llm import AsyncLLM

    shared: dict[str, Any] = {}
    if attachment is None:
        arguments, config = configured(profile, model_path, model_name)
    else:
        # First: what vLLM does not take is told once, by whoever starts the core.
        addresses = vllm_core.attachment(attachment.end)
        count, index = attachment.num_processes, attachment.process
        arguments, config = configured(profile, model_path, model_name, num_processes=count, process=index)
        shared = {"client_addresses": addresses, "client_count": count, "client_index": index}
    return AsyncLLM.from_vllm_config(
        config,
        stat_loggers=[recorder_class(stats, is_shared=attachment is not None)],
        enable_log_requests=arguments.enable_log_requests,
        disable_log_stats=arguments.disable_log_stats,
        **shared,
    )


def _reason(error: Exception) -> str:
    """What is wrong, on one line: of pydantic's errors each field, its value and the fault."""
    try:
        details = error.errors()  # type: ignore[attr-defined]
    except AttributeError:
        return " ".join(str(error).split()) or type(error).__name__
    return "; ".join(f"`{'.'.join(map(str, of['loc']))}`: {' '.join(of['msg'].split())}{_given(of)}" for of in details)


def _given(detail: Any) -> str:
    return f", not `{detail['input']}`" if isinstance(detail["input"], (str, int, float)) else ""


def configured(
    profile: Profile, model_path: Path, model_name: str, *, num_processes: int = 1, process: int = 0
) -> tuple[Any, Any]:
    """vLLM's arguments and configuration, for number `process` of so many, or -1 for the one that starts the engine core.

    Raises `ProfileError` for what vLLM does not know or take, or can't do here.
    """
    import vllm.envs
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform

    # Without it vLLM looks each of its switches up in the environment at every use, some of them for every token.
    vllm.envs.enable_envs_cache()
    engine = profile.arguments({field.name for field in fields(AsyncEngineArgs)})
    try:
        arguments = AsyncEngineArgs(model=str(model_path), served_model_name=model_name, **engine)
        arguments._api_process_count, arguments._api_process_rank = num_processes, process
        config = arguments.create_engine_config()
    except OSError:  # of a file or a network, which may be there the next time; some are value errors as well
        raise
    except (ValueError, TypeError, LookupError, AttributeError, AssertionError, NotImplementedError) as error:
        raise ProfileError(
            f"engine.profile, engine.overrides: vLLM does not take `{profile.name}` for this model: {_reason(error)}. "
            "`k3-gateway check-config` shows where each argument is from"
        ) from error
    scheduler = config.scheduler_config
    if current_platform.is_cpu() and (scheduler.enable_chunked_prefill or scheduler.long_prefill_token_threshold):
        raise ProfileError(
            f"the engine profile `{profile.name}` prefills prompts in parts; on a CPU a seeded request would end the engine: "
            "set `enable_chunked_prefill: false` with `max_num_batched_tokens` above `max_model_len`, and drop "
            "`long_prefill_token_threshold`"
        )
    if current_platform.is_cpu() and config.speculative_config is not None and not vllm_plugin.is_installed():
        raise ProfileError(
            f"the engine profile `{profile.name}` speculates; on a CPU that needs a cure which vLLM finds only in an installed "
            "package: run `pip install -e .`, or override `speculative_config: null`"
        )
    return arguments, config
