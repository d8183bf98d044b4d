# syntax=docker/dockerfile:1
# Two images. `vllm` (the default): the gateway on vLLM's own image, for NVIDIA or AMD:
#   docker build -t k3-gateway:cuda .
#   docker build -t k3-gateway:rocm --build-arg VENDOR=rocm .
#   docker build -t k3-gateway:cuda --build-arg BASE_IMAGE=vllm/vllm-openai:v0.33.0-cu129 .   (drivers that have no CUDA 13)
# `scripted`: the gateway without vLLM, which says what it is told; runs anywhere:
#   docker build -t k3-gateway:scripted --target scripted .
# Writes to /var/lib/k3-gateway (ledger and spool: keep them), /var/cache/k3-gateway (what vLLM compiles: keep it, or starts take longer)
# and /tmp, and nowhere else: the root file system may be read-only. Reads the model from /models, its settings from /etc/k3-gateway.
ARG VENDOR=cuda
ARG VLLM_VERSION=0.33.0
ARG BASE_IMAGE=

# What both images are, beside what they stand on. A base is named by what was asked for: all of it, its vendor, or nothing.
FROM vllm/vllm-openai:v${VLLM_VERSION} AS base-cuda
FROM vllm/vllm-openai-rocm:v${VLLM_VERSION} AS base-rocm
FROM ${BASE_IMAGE:-base-${VENDOR}} AS vllm-base

FROM python:3.12-slim AS scripted
USER 0
SHELL ["/bin/sh", "-euc"]
RUN --mount=type=bind,target=/source,readonly /source/deploy/container/install.sh /source /opt/k3-gateway tracing
RUN useradd --uid 10001 --gid 0 --home-dir /var/cache/k3-gateway --no-create-home --shell /usr/sbin/nologin k3gw; \
    install -d -o 10001 -g 0 -m 0770 /var/lib/k3-gateway /var/cache/k3-gateway; \
    install -d -m 0755 /models /etc/k3-gateway
COPY deploy/container/scripted.yaml /etc/k3-gateway/config.yaml
ENV PATH=/opt/k3-gateway/bin:$PATH \
    HOME=/var/cache/k3-gateway
USER 10001:0
WORKDIR /var/lib/k3-gateway
VOLUME ["/var/lib/k3-gateway", "/var/cache/k3-gateway"]
EXPOSE 8000
STOPSIGNAL SIGTERM
# It lives as soon as it listens, also while a model loads; whether it takes requests is /ready's to say.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["/opt/k3-gateway/bin/python", "-IS", "-c", "import http.client, sys; c = http.client.HTTPConnection('127.0.0.1', 8000, timeout=4); c.request('GET', '/health'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["k3-gateway", "serve"]
CMD ["--config", "/etc/k3-gateway/config.yaml"]

FROM vllm-base AS vllm
USER 0
SHELL ["/bin/sh", "-euc"]
# `ray`: for an engine over several nodes.
RUN --mount=type=bind,target=/source,readonly /source/deploy/container/install.sh /source /opt/k3-gateway tracing ray
RUN useradd --uid 10001 --gid 0 --home-dir /var/cache/k3-gateway --no-create-home --shell /usr/sbin/nologin k3gw; \
    install -d -o 10001 -g 0 -m 0770 /var/lib/k3-gateway /var/cache/k3-gateway; \
    install -d -m 0755 /models /etc/k3-gateway
COPY --chmod=0755 deploy/container/ray-node.sh /opt/k3-gateway/bin/ray-node
COPY deploy/container/vllm.yaml /etc/k3-gateway/config.yaml
# The model lies on a volume: nothing is to be fetched, nor told, at run time. What is compiled is kept where a volume is, not in /tmp.
ENV PATH=/opt/k3-gateway/bin:$PATH \
    HOME=/var/cache/k3-gateway \
    TORCHINDUCTOR_CACHE_DIR=/var/cache/k3-gateway/torchinductor \
    TRITON_CACHE_DIR=/var/cache/k3-gateway/triton \
    HF_HUB_OFFLINE=1 \
    VLLM_NO_USAGE_STATS=1
USER 10001:0
WORKDIR /var/lib/k3-gateway
VOLUME ["/var/lib/k3-gateway", "/var/cache/k3-gateway"]
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["/opt/k3-gateway/bin/python", "-IS", "-c", "import http.client, sys; c = http.client.HTTPConnection('127.0.0.1', 8000, timeout=4); c.request('GET', '/health'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["k3-gateway", "serve"]
CMD ["--config", "/etc/k3-gateway/config.yaml"]
