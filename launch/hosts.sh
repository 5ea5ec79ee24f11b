#!/usr/bin/env bash
# Training on a plain list of hosts, over ssh, and a vLLM server on one more of them if SERVER_HOST names it. Run from the repository.
#
#   HOSTS="node1 node2" GPUS_PER_NODE=8 launch/hosts.sh gsm8k_qwen05b ddp
#   HOSTS="node1 node2" SERVER_HOST=node3 GPUS_PER_NODE=8 launch/hosts.sh gsm8k_qwen05b_server zero2 --max_steps 100
#   DRY_RUN=1 …      prints the commands
#
#   HOSTS            names or addresses that ssh reaches without a password, and that reach each other under the same name ([user@]host)
#   SERVER_HOST      the host of the server; training gets none of its GPUs
# The other variables are described in launch/common.sh. Ctrl-C, or the end of this script however it comes, ends everything: each host
# runs its command until its connection closes, and then ends it as kill does, with a checkpoint where the recipe saves any.
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
[[ -n $SERVER_HOST ]] || check_needs_no_server "SERVER_HOST=node3"

if [[ -z $DRY_RUN ]]; then
  # Every connection's input is one of two pipes whose writing end only this script holds. That it closes is how the hosts learn of the end.
  pipes=$(mktemp -d)
  mkfifo "$pipes/trainer" "$pipes/server"
  exec 8<>"$pipes/trainer" 9<>"$pipes/server"
  trap 'rm -rf "$pipes"' EXIT
fi

# What a host runs, in one line: the command in a session of its own, and beside it a reader of the connection, which ends the command when
# the connection closes. A launcher that is killed, or whose network fails, thus leaves nothing behind.
remote_script() {
  local command watch
  printf -v command '%q ' "$@"
  # shellcheck disable=SC2016 # the host expands these
  watch='pid=$!; { cat <&3; kill -TERM -$pid; sleep '$STOP_SECONDS'; kill -KILL -$pid; } >/dev/null 2>&1 & watcher=$!'
  # shellcheck disable=SC2016
  printf 'cd %q || exit; exec 3<&0; setsid %s 3<&- & %s; wait $pid; status=$?; kill $watcher; exit $status' "$PWD" "$command" "$watch"
}

start() {
  local kind=$1 host=$2 script
  shift 2
  script=$(remote_script env "no_proxy=${no_proxy:-}" "NO_PROXY=${NO_PROXY:-}" "$@")
  # A host that went away is noticed within a minute.
  ssh -o BatchMode=yes -o ServerAliveInterval=15 -o ServerAliveCountMax=4 "$host" "bash -c $(printf %q "$script")" \
    <"$pipes/$kind" 8>&- 9>&- &
}

# Closes the connections of one kind, which are all of them that read this pipe.
interrupt() {
  case $1 in trainer) exec 8>&- ;; server) exec 9>&- ;; esac
}

run_everything
