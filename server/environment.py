"""Writing the process environment, for libraries that take settings in no other way.

Role: called once, before vLLM is imported: vLLM reads most of its switches from the environment when it is first imported, and
its engine process inherits them. The second named exception to "only `settings.py` touches the environment": this module writes
and never reads; nothing of ours may take a setting from what it has written.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping


def apply(environment: Mapping[str, str]) -> None:
    """Set these variables of this process and of the processes it starts. Variables that are set already are replaced."""
    os.environ.update(environment)
    # vLLM reads this one when it is configured; what it says while it is imported would come through whatever the level.
    if "VLLM_LOGGING_LEVEL" in environment:
        logging.getLogger("vllm").setLevel(environment["VLLM_LOGGING_LEVEL"].upper())
