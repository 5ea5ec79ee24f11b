#!/usr/bin/env bash
# Trains on a list of hosts over ssh; Slurm: slurm/, clouds: launch/skypilot.yaml. The repository is at the same path on every host.
#   HOSTS="node1 node2" GPUS_PER_NODE=8 launch/hosts.sh recipes/gsm8k_qwen05b.yaml accelerate_configs/ddp.yaml [--key value …]
#   HOSTS            [user@]names that ssh reaches without a password and that reach each other
#   SERVER_HOST      one more host, for a vLLM server; SERVER_FLAGS: flags of `vllm serve`, split at spaces
#   METHOD           grpo (default), sft or distill; PYTHON: .venv/bin/python; PORT: the first of three, 29500
#   STOP_SECONDS     seconds for training's last step and checkpoint when it is told to stop, 240
#   PASS_ENV         names of variables that the hosts get too, such as "HF_TOKEN NCCL_SOCKET_IFNAME"
# Ctrl-C, or the end of this script however it comes, ends every host's command with SIGTERM: training saves a checkpoint.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
read -r -a hosts <<<"${HOSTS:?must be names of hosts. Fix: HOSTS=\"node1 node2\"}"
processes=$((${GPUS_PER_NODE:?must be the number of training processes on each host. Fix: GPUS_PER_NODE=8} * ${#hosts[@]}))
recipe=${1:?the recipe is missing. Fix: launch/hosts.sh RECIPE CONFIG [--key value …]}
config=${2:?the accelerate config is missing. Fix: launch/hosts.sh RECIPE CONFIG [--key value …]}
python=${PYTHON:-$PWD/.venv/bin/python} port=${PORT:-29500} server_host=${SERVER_HOST:-}

# It goes over the connection: everybody on a host can read a secret in a command.
environment="export STOP_SECONDS=${STOP_SECONDS:-240} PET_SHUTDOWN_TIMEOUT=${STOP_SECONDS:-240} R1_RECIPES_PROCESSES=$processes; "
for name in ${PASS_ENV:-}; do
  [[ -v $name ]] || { echo "PASS_ENV: must be names of variables that are set here, got '$name'" >&2 && exit 2; }
  environment+="export $name=$(printf %q "${!name}"); "
done

# Only this script holds the writing ends of the pipes: their end, or its own, is how the hosts learn that they are to stop.
pipes=$(mktemp -d)
trap 'rm -rf "$pipes"' EXIT
mkfifo "$pipes/trainer" "$pipes/server"
exec 8<>"$pipes/trainer" 9<>"$pipes/server"

start() { # PIPE HOST COMMAND…
  ssh -o BatchMode=yes -o ServerAliveInterval=15 -o ServerAliveCountMax=4 "$2" \
    "cd ${PWD@Q} && exec bash launch/on_host.sh --input $(printf '%q ' "${@:3}")" \
    8>&- 9>&- < <(printf '%s\n' "$environment" && exec cat "$pipes/$1") &
}

server=() trainers=() status=0
if [[ $server_host ]]; then
  address=${server_host#*@}
  server=(--use_vllm true --vllm_mode server --vllm_server_host "$address" --vllm_server_port $((port + 1))
    --vllm_group_port $((port + 2)) --vllm_server_timeout 1200)
  # A proxy for the outside world must not stand between trainer and server.
  environment+="export no_proxy=\"\${no_proxy:-},$address\" NO_PROXY=\"\${NO_PROXY:-},$address\"; "
  read -r -a flags <<<"${SERVER_FLAGS:-}"
  start server "$server_host" "$python" -m r1_recipes.vllm_server "$recipe" "${server[@]}" "${@:3}" -- "${flags[@]}"
  server_pid=$!
fi
for rank in "${!hosts[@]}"; do
  start trainer "${hosts[rank]}" "$python" -m accelerate.commands.launch --config_file "$config" --num_machines "${#hosts[@]}" \
    --num_processes "$processes" --machine_rank "$rank" --main_process_ip "${hosts[0]#*@}" --main_process_port "$port" \
    -m "r1_recipes.${METHOD:-grpo}" "$recipe" "${server[@]}" "${@:3}"
  trainers+=("$!")
done

stop_training() { # STATUS REASON
  ((status)) || { status=$1 && echo "$2; training is told to stop" >&2 && exec 8>&-; }
}
trap 'stop_training 130 "a signal came"' TERM INT HUP
while ((${#trainers[@]})); do
  sleep 0.5 || true
  for rank in "${!trainers[@]}"; do
    kill -0 "${trainers[rank]}" 2>/dev/null && continue
    wait "${trainers[rank]}" || stop_training $? "training on ${hosts[rank]} ended with status $?"
    unset "trainers[rank]"
  done
  if [[ $server_host ]] && ((${#trainers[@]})) && ! kill -0 "$server_pid" 2>/dev/null; then
    stop_training 1 "the server on $server_host ended before training did"
  fi
done
exec 9>&- # the server last: training's last step still asks it for completions
wait
exit "$status"
