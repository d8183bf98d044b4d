"""The demo checkpoint: a small Llama that speaks Kimi K3's protocol, for trying and testing the gateway on a CPU.

Role: beside the walk of a request; the command `k3-gateway demo-model` is its only caller. Invariant: nothing heavy is imported
until a checkpoint is built. How the adapter was trained: `demo/` in the repository and `docs/demo-model.md`.
"""
