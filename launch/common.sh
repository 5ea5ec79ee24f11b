# shellcheck shell=bash
# What launch/hosts.sh and the scripts in slurm/ share. Sourced; needs bash 4.4 or newer, and the working directory at the same path on
# every host.
#
# A launcher is called as    LAUNCHER RECIPE CONFIG [--key value …]
#   RECIPE           a recipe's path, or its name below recipes/
#   CONFIG           a file of accelerate_configs/, by its path or name: ddp, zero2, zero3, fsdp2, …
#   --key value      overrides of the recipe, as in training
# and reads these environment variables; their defaults stand here and nowhere else:
METHOD=${METHOD:-grpo}                           # the entry point: grpo, sft or distill
PYTHON=${PYTHON:-$PWD/.venv/bin/python}          # the same on every host
GPUS_PER_NODE=${GPUS_PER_NODE:-}                 # training processes a host; SLURM: as many as the job has GPUs there
SERVER_FLAGS=${SERVER_FLAGS:-}                   # flags of `vllm serve`, such as --gpu-memory-utilization 0.8
SERVER_TIMEOUT=${SERVER_TIMEOUT:-1200}           # seconds that training waits for the server to answer
STOP_SECONDS=${STOP_SECONDS:-240}                # seconds that training has for its last step and checkpoint when it is told to stop
PORT=${PORT:-}                                   # first of three ports: training, server, weights; SLURM: by the job's number
DRY_RUN=${DRY_RUN:-}                             # not empty: print the commands, run none

fail() {
  printf 'error: %s\n' "$1" >&2
  exit 2
}

note() {
  printf '%s: %s\n' "${0##*/}" "$1" >&2
}

# The file that a name or path means: find_file KIND FOLDER NAME
find_file() {
  local candidate
  for candidate in "$3" "$2/$3" "$2/$3.yaml"; do
    if [[ -f $candidate ]]; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  fail "$1 '$3' is no file, nor is $2/${3%.yaml}.yaml; there are: $(cd "$2" 2>/dev/null && find . -name '*.yaml' ! -path './pipelines/*' | sed 's|^\./||; s|\.yaml$||' | sort | tr '\n' ' ')"
}

# Sets RECIPE, ACCELERATE_CONFIG and OVERRIDES from the command line.
read_arguments() {
  (($# >= 2)) || fail "usage: ${0##*/} RECIPE CONFIG [--key value ...]; launch/common.sh lists the variables"
  RECIPE=$(find_file recipe recipes "$1") || exit
  ACCELERATE_CONFIG=$(find_file 'accelerate config' accelerate_configs "$2") || exit
  OVERRIDES=("${@:3}")
  case $METHOD in grpo | sft | distill) ;; *) fail "METHOD: found '$METHOD'; grpo, sft or distill" ;; esac
  [[ $GPUS_PER_NODE =~ ^[1-9][0-9]*$ ]] || fail "GPUS_PER_NODE: found '$GPUS_PER_NODE'; the number of training processes a host"
  if [[ -z $DRY_RUN && ! -x $PYTHON ]]; then
    fail "PYTHON: $PYTHON is not there; run make install in $PWD, or set PYTHON"
  fi
}

# A recipe that waits for a server needs one: check_needs_no_server LAUNCHER
check_needs_no_server() {
  local words=" ${OVERRIDES[*]-} "
  if grep -Eq '^vllm_mode: *"?server' "$RECIPE" && [[ $words != *" --vllm_mode"* && $words != *" --use_vllm"* && $words != *" --vllm_server_"* ]]; then
    fail "$RECIPE says vllm_mode: server, and no server is started here; use $1, or add --vllm_mode colocate"
  fi
}

# What trainer and server are both told, so that they find each other: set_server_arguments HOST
set_server_arguments() {
  SERVER_ARGUMENTS=(--use_vllm true --vllm_mode server --vllm_server_host "${1#*@}" --vllm_server_port $((PORT + 1))
    --vllm_group_port $((PORT + 2)) --vllm_server_timeout "$SERVER_TIMEOUT")
}

# The command of training host number RANK of COUNT, with the first at ADDRESS: set_train_command RANK COUNT ADDRESS
set_train_command() {
  # torch's agent kills its workers 30 s after a signal; a step and a checkpoint can take longer.
  COMMAND=(env "PET_SHUTDOWN_TIMEOUT=$STOP_SECONDS" "$PYTHON" -m accelerate.commands.launch --config_file "$ACCELERATE_CONFIG"
    --num_machines "$2" --num_processes $((GPUS_PER_NODE * $2)) --machine_rank "$1" --main_process_ip "${3#*@}" --main_process_port "$PORT"
    -m "r1_recipes.$METHOD" "$RECIPE" ${SERVER_ARGUMENTS[@]+"${SERVER_ARGUMENTS[@]}"} ${OVERRIDES[@]+"${OVERRIDES[@]}"})
}

set_server_command() {
  local flags=()
  read -r -a flags <<<"$SERVER_FLAGS"
  COMMAND=("$PYTHON" -m r1_recipes.vllm_server "$RECIPE" "${SERVER_ARGUMENTS[@]}" ${OVERRIDES[@]+"${OVERRIDES[@]}"})
  if ((${#flags[@]})); then COMMAND+=(-- "${flags[@]}"); fi
}

# Runs training on TRAIN_HOSTS, and on SERVER_HOST (unless empty) the server; ends with the status of what ended first otherwise than well.
# The launcher that sources this defines
#   start KIND HOST COMMAND…    runs COMMAND on HOST in the background, so that $! is its process here; KIND is trainer or server
#   interrupt KIND PID…         asks for the end of all of one kind
run_everything() {
  local rank count=${#TRAIN_HOSTS[@]}
  TRAINERS=() SERVER='' SERVER_ARGUMENTS=() STOPPING=''
  if [[ -n $SERVER_HOST ]]; then
    set_server_arguments "$SERVER_HOST"
    # A proxy for the outside world must not stand between trainer and server.
    export no_proxy="${no_proxy:+$no_proxy,}${SERVER_HOST#*@}" NO_PROXY="${NO_PROXY:+$NO_PROXY,}${SERVER_HOST#*@}"
    set_server_command
    launch server "$SERVER_HOST"
    SERVER=$LAUNCHED
  fi
  for ((rank = 0; rank < count; rank++)); do
    set_train_command "$rank" "$count" "${TRAIN_HOSTS[0]}"
    launch trainer "${TRAIN_HOSTS[rank]}"
    TRAINERS+=("$LAUNCHED")
  done
  [[ -z $DRY_RUN ]] || return 0
  trap 'STOPPING=yes' TERM INT HUP
  supervise
}

launch() {
  LAUNCHED=''
  if [[ -n $DRY_RUN ]]; then
    printf '%s:' "$2"
    printf ' %q' "${COMMAND[@]}"
    printf '\n'
    return
  fi
  start "$1" "$2" "${COMMAND[@]}"
  LAUNCHED=$!
}

alive() {
  [[ -n ${1:-} ]] && kill -0 "$1" 2>/dev/null
}

supervise() {
  local index status=0 ended=''
  while [[ -z $ended ]]; do
    sleep 0.5
    if [[ -n $STOPPING ]]; then
      note "stopping after the step that training is in"
      status=130 ended=yes
      break
    fi
    for index in "${!TRAINERS[@]}"; do
      alive "${TRAINERS[index]}" && continue
      wait "${TRAINERS[index]}" || status=$?
      unset 'TRAINERS[index]'
      if ((status)); then
        note "training on ${TRAIN_HOSTS[index]} ended with status $status; the others are stopped"
        ended=yes
        break
      fi
    done
    ((${#TRAINERS[@]})) || ended=yes
    if [[ -z $ended && -n $SERVER ]] && ! alive "$SERVER"; then
      wait "$SERVER" || status=$?
      note "the server on $SERVER_HOST ended with status $status before training did"
      ((status)) || status=1
      ended=yes
    fi
  done
  # Training first: its last step still asks the server for completions.
  stop trainer ${TRAINERS[@]+"${TRAINERS[@]}"}
  stop server ${SERVER:+"$SERVER"}
  return "$status"
}

# Asks processes of one kind to end, and after STOP_SECONDS ends them: stop KIND [PID…]
stop() {
  local kind=$1 pid left deadline=$((SECONDS + STOP_SECONDS))
  shift
  (($#)) || return 0
  interrupt "$kind" "$@"
  while :; do
    left=()
    for pid in "$@"; do
      if alive "$pid"; then left+=("$pid"); fi
    done
    ((${#left[@]})) || break
    if ((SECONDS >= deadline)); then
      kill -KILL "${left[@]}" 2>/dev/null || true
    fi
    sleep 0.5
  done
  wait "$@" 2>/dev/null || true
}
