"""What all servers under measurement are asked with: one model, one key, one template."""

from __future__ import annotations

from typing import Final

KEY: Final = "k3gw-bench-key-0123456789"
MODEL: Final = "kimi-k3"
MAX_MODEL_LEN: Final = 8192
MAX_STREAMS: Final = 8192
TEMPLATE: Final = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant: "
    "<|open|>{% if thinking is defined and not thinking %}response{% else %}think{% endif %}<|sep|>"
)
"""For vLLM's servers, which need one; the gateway renders K3's own, longer prompt."""
