#!/usr/bin/env bash
# Training on a plain list of hosts, over ssh, and a vLLM server on one more of them if SERVER_HOST names it. Run from the repository.
#
#   HOSTS="node1 node2" GPUS_PER_NODE=8 launch/hosts.sh gsm8k_qwen05b ddp
#   HOSTS="node1 node2" SERVER_HOST=node3 GPUS_PER_NODE=8 launch/hosts.sh gsm8k_qwen05b_server zero2 --max_steps 100
#   DRY_RUN=1 …      prints the commands
#
#   HOSTS            names or addresses that ssh reaches without a password, and that reach each other under the same name ([user@]host)
#   SERVER_HOST      the host of the server; training gets none of its GPUs
# The other variables are described in launch/common.sh; of this environment the hosts get what PASS_ENV names, over the connection. Ctrl-C, or
# the end of this script however it comes, ends everything: each host runs its command until its connection closes, and then ends it as kill
# does, with a checkpoint where the recipe saves any.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=launch/common.sh
source launch/common.sh

PORT=${PORT:-29500}
SERVER_HOST=${SERVER_HOST:-}
read -r -a TRAIN_HOSTS <<<"${HOSTS:-}"
read_arguments "$@"
((${#TRAIN_HOSTS[@]})) || fail "HOSTS is not set: HOSTS=\"node1 node2\", and SERVER_HOST=node3 for a server"
for host in "${TRAIN_HOSTS[@]}"; do
  [[ $host != "$SERVER_HOST" ]] || fail "SERVER_HOST $host is one of HOSTS too; the server needs GPUs of its own"
done
check_server SERVER_HOST=node3

set_connection() {
  local host=$1
  shift
  # A host that went away is noticed within a minute.
  CONNECTION=(ssh -o BatchMode=yes -o ServerAliveInterval=15 -o ServerAliveCountMax=4 "$host" "cd $(quoted "$PWD") && exec $(quoted "$@")")
}

run_everything
