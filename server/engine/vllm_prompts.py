"""Long prompts, checked beside the event loop.

Role: step 6 of a request, between `vllm.py` and vLLM, which looks at every token of a prompt twice while the event loop waits:
for a million tokens that is some 30 ms. Here its own check is made in a thread, part by part.
Invariant: no prompt reaches the engine unchecked: a token id that the model does not have would end it.
Source: `InputProcessor._validate_model_input` of vllm/v1/engine/input_processor.py (0.32 and 0.33).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, Final

from server.pauses import Pauses

LONG_TOKENS: Final = 64 * 1024
_TOKENS_AT_ONCE: Final = 16 * 1024


class LongPrompts:
    """Takes long prompts off the check that `renderer`, vLLM's, makes; whoever gives one to vLLM awaits `check` first."""

    def __init__(self, renderer: Any) -> None:
        self._validate = renderer.validate_token_ids
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="check-prompt")
        renderer.validate_token_ids = self._validate_short

    def has(self, token_ids: Sequence[int]) -> bool:
        """Whether `token_ids` are a long prompt."""
        return len(token_ids) > LONG_TOKENS

    async def check(self, token_ids: Sequence[int]) -> None:
        """Raises vLLM's validation error for a token id that the model does not have."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._check, token_ids, Pauses(loop))

    async def checked(self, token_ids: Sequence[int], begin: Callable[[], Any]) -> AsyncGenerator[Any, None]:
        """What `begin`, called once `token_ids` have been checked, gives. Raises as `check`."""
        await self.check(token_ids)
        async with aclosing(begin()) as outputs:
            async for output in outputs:
                yield output

    def _check(self, token_ids: Sequence[int], pause: Callable[[], None]) -> None:
        for start in range(0, len(token_ids), _TOKENS_AT_ONCE):
            self._validate(token_ids[start : start + _TOKENS_AT_ONCE])
            pause()

    def _validate_short(self, token_ids: Sequence[int], **options: Any) -> None:
        if not self.has(token_ids):
            self._validate(token_ids, **options)
