"""How much room a prompt leaves for its answer.

Role: beside `generation.py`; checks before anything is reserved. Messages have the numbers that did not fit.
"""

from __future__ import annotations

from typing import Final

from server.admission.limits import context_room
from server.errors import ContextLengthError, InvalidRequestError
from server.job import Job

MIN_TOKENS_OF_ALL_CHOICES: Final = 262_144


def room_for(job: Job, num_tokens: int, context_length: int) -> int:
    """How many tokens an answer may have, by the model's context and by what the tenant may use of it."""
    of_tenant = context_room(job.context.tenant, num_tokens)
    room = context_length - num_tokens
    if room < 1:
        raise ContextLengthError(
            f"the prompt has {num_tokens} tokens, the context of `{job.model.name}` has {context_length}; the answer needs one "
            "at least; shorten the conversation",
            param="messages",
        )
    return room if of_tenant is None else min(room, of_tenant)


def check_all_choices(num_choices: int, num_tokens: int, context_length: int) -> None:
    """The engine is given the prompt once for each choice: bounds the work of one request, and what it holds."""
    most = max(context_length, MIN_TOKENS_OF_ALL_CHOICES)
    if num_choices > 1 and num_choices * num_tokens > most:
        raise InvalidRequestError(
            f"`n` is `{num_choices}` and the prompt has {num_tokens} tokens, together {num_choices * num_tokens}; at most {most} "
            "are allowed: ask for fewer choices, or send several requests",
            param="n",
        )
