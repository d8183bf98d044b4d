"""k3-gateway: an OpenAI-compatible, multi-tenant gateway for Kimi K3 on vLLM."""

__version__ = "0.1.0"
