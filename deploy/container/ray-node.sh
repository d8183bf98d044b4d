#!/bin/sh
# One node of an engine that spans several: a Ray cluster of exactly this engine, and on its first node the gateway.
#   ray-node leader NUM_NODES [ARGUMENT…]   starts the cluster, waits for NUM_NODES nodes, becomes `k3-gateway serve ARGUMENT…`
#   ray-node worker LEADER                  joins the cluster of the host LEADER, and ends when it does
#   ray-node outlast LEADER                 returns when that cluster is no more: what a worker waits for before it goes
# Ray runs on the gateway's own Python: its workers load what the gateway brings to vLLM. Needs: the extra `ray`.
#   RAY_PORT       6379 if unset
#   NODES_WAIT_S   how long the leader waits for its nodes; 1800 if unset, as nodes may be pulling the image
set -eu

prefix=$(CDPATH='' cd -- "$(dirname -- "$(readlink -f -- "$0")")" && pwd)
port=${RAY_PORT:-6379}
python=$prefix/python
ray() { "$python" -m ray.scripts.scripts "$@"; }
answers() { "$python" -IS -c 'import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3).close()' "$1" "$port" 2>/dev/null; }
say() { printf 'ray-node: %s\n' "$*" >&2; }

case "${1:-}" in
    leader)
        num_nodes=${2:?how many nodes there are}
        shift 2
        ray start --head --port="$port" --disable-usage-stats --include-dashboard=false
        say "waiting for $num_nodes nodes"
        "$python" - "$num_nodes" "${NODES_WAIT_S:-1800}" <<'EOF'
import sys
import time

import ray

wanted, deadline_s = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
ray.init(address="auto", log_to_driver=False)
while (found := sum(node["Alive"] for node in ray.nodes())) < wanted:
    if time.monotonic() > deadline_s:
        sys.exit(f"ray-node: error: {found} of {wanted} nodes came; look at the others' logs")
    time.sleep(2)
EOF
        say "all nodes are there"
        export RAY_ADDRESS=auto   # this one or none: vLLM would otherwise start a cluster of one node
        exec "$prefix/k3-gateway" serve "$@"
        ;;
    worker)
        leader=${2:?the host of the leader}
        deadline_s=$(($(date +%s) + ${NODES_WAIT_S:-1800}))
        until answers "$leader"; do
            if [ "$(date +%s)" -gt "$deadline_s" ]; then
                say "error: no Ray at $leader:$port"
                exit 1
            fi
            sleep 2
        done
        exec "$python" -m ray.scripts.scripts start --address="$leader:$port" --disable-usage-stats --block
        ;;
    outlast)
        leader=${2:?the host of the leader}
        while answers "$leader" || { sleep 2 && answers "$leader"; }; do
            sleep 2
        done
        ;;
    *)
        say "error: say \`leader NUM_NODES\`, \`worker LEADER\` or \`outlast LEADER\`"
        exit 2
        ;;
esac
