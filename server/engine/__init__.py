"""The engine seam: token ids in, token ids out. `base` is the contract; `vllm` and `scripted` fulfil it."""
