"""`python -m bench COMMAND …`, which is also `k3-gateway bench COMMAND …`: everything that is measured, one command each."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Final

COMMANDS: Final = {
    "stream": "a streamed token: against vLLM's servers in Python and Rust, and against lower bounds",
    "parse": "reading an answer: our decoder against vLLM's, and how both grow with the answer",
    "prompt": "long prompts: rendered cold and as the next turn, and what other streams feel of it",
    "idle": "memory of an open stream that says nothing",
    "connect": "tiny replies: requests/s and added latency, against LiteLLM's proxy",
    "metrics": "what metrics cost, and what a scrape does to streams",
    "images": "what images do to everybody else",
    "fairness": "how fair the queue is",
    "drain": "what a start, a drain and the engine's death cost clients",
    "workers": "several processes against one",
    "admission": "limits: reserve, deltas, settle",
    "ledger": "rows into the ledger",
    "grammar": "what holds answers to their form",
    "leaks": "100,000 requests that end in every way, and what is left of them",
    "tool_schemas": "calls of many tools, asked of a running gateway",
    "wrong_keys": "a valid client beside a flood of wrong keys",
}


def main(arguments: list[str] | None = None) -> None:
    """Run the command that the first of `arguments` names; exit code 2 where it names none."""
    arguments = sys.argv[1:] if arguments is None else arguments
    name = arguments[0] if arguments else ""
    if name not in COMMANDS or importlib.util.find_spec(f"bench.{name}") is None:
        width = max(map(len, COMMANDS))
        print("usage: bench COMMAND …; `bench COMMAND --help` says more\n", file=sys.stderr)
        print("\n".join(f"  {command:{width}}  {text}" for command, text in COMMANDS.items()), file=sys.stderr)
        sys.exit(0 if name in ("", "-h", "--help") else 2)
    sys.argv = [f"bench {name}", *arguments[1:]]
    try:
        importlib.import_module(f"bench.{name}").main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
