# shellcheck shell=bash
# What launch/hosts.sh and the scripts in slurm/ share. Sourced; needs bash 4.4 or newer, and the working directory at the same path on
# every host. The recipe's output_dir must be on storage that all hosts share: the first writes the run and its checkpoints there, and every
# host reads the newest checkpoint from it to go on.
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
PASS_ENV=${PASS_ENV:-}                           # names of variables that the hosts get too: "HF_TOKEN HF_HOME NCCL_SOCKET_IFNAME"; SLURM: all
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

# One process alone, many times over, is no run: each would write the whole of it. Needs TRAIN_HOSTS.
check_processes() {
  PROCESSES=$((GPUS_PER_NODE * ${#TRAIN_HOSTS[@]}))
  if ((PROCESSES > 1)) && grep -Eq "^distributed_type: *['\"]?NO\b" "$ACCELERATE_CONFIG"; then
    fail "$ACCELERATE_CONFIG: distributed_type: NO is for one process, and ${#TRAIN_HOSTS[@]} host(s) with GPUS_PER_NODE=$GPUS_PER_NODE are $PROCESSES; use ddp, zero2, zero3 or fsdp2"
  fi
}

# The last value that a key has among words such as --key value and --key=value, "true" where it is given none; fails where it is not
# there: last_value KEY[|OTHER_NAME] [WORD…]
last_value() {
  local names=$1 key value found=1
  shift
  while (($#)); do
    key=${1%%=*}
    key=${key#-}
    key=${key#-}
    if [[ $1 == -* && ${key//-/_} =~ ^($names)$ ]]; then
      found=0
      case $1 in *=*) value=${1#*=} ;; *) value=${2-true} ;; esac
      if [[ $value == --* ]]; then value=true; fi
    fi
    shift
  done
  ((found)) || printf '%s\n' "$value"
  return "$found"
}

# A key's value by the overrides, or else by the recipe; empty where neither has it: setting KEY
setting() {
  last_value "$1" ${OVERRIDES[@]+"${OVERRIDES[@]}"} || sed -En "s/^$1: *[\"']?([^\"' #]*).*/\1/p" "$RECIPE"
}

# A server for a method that generates, or one that is not needed: check_server HOW_TO_HAVE_ONE, with SERVER_HOST
check_server() {
  if [[ -n $SERVER_HOST ]]; then
    [[ $METHOD != sft ]] || fail "METHOD: sft generates nothing and needs no server; launch it without one"
    return
  fi
  [[ $METHOD != sft && $(setting vllm_mode) == server ]] || return 0
  case $(setting use_vllm) in [Ff]* | [Nn]* | 0 | '') return ;; esac
  # Somebody else's server, which this command names.
  if last_value 'vllm_server_host|vllm_server_base_url' ${OVERRIDES[@]+"${OVERRIDES[@]}"} >/dev/null; then return; fi
  fail "$RECIPE with these overrides has vllm_mode: server, and no server is started here; use $1, add --vllm_mode colocate, or name a running one: --vllm_server_host HOST"
}

# What trainer and server are both told, so that they find each other: set_server_arguments HOST
set_server_arguments() {
  SERVER_ARGUMENTS=(--use_vllm true --vllm_mode server --vllm_server_host "${1#*@}" --vllm_server_port $((PORT + 1))
    --vllm_group_port $((PORT + 2)) --vllm_server_timeout "$SERVER_TIMEOUT")
}

# The command of training host number RANK of COUNT, with the first at ADDRESS: set_train_command RANK COUNT ADDRESS
set_train_command() {
  # torch's agent kills its workers 30 s after a signal; a step and a checkpoint can take longer. The processes check how many they are.
  COMMAND=("PET_SHUTDOWN_TIMEOUT=$STOP_SECONDS" "R1_RECIPES_PROCESSES=$PROCESSES" "$PYTHON" -m accelerate.commands.launch
    --config_file "$ACCELERATE_CONFIG" --num_machines "$2" --num_processes "$PROCESSES" --machine_rank "$1" --main_process_ip "${3#*@}"
    --main_process_port "$PORT" -m "r1_recipes.$METHOD" "$RECIPE" ${SERVER_ARGUMENTS[@]+"${SERVER_ARGUMENTS[@]}"}
    ${OVERRIDES[@]+"${OVERRIDES[@]}"})
}

set_server_command() {
  local flags tensor data
  # Quotes in SERVER_FLAGS mean what they mean to a shell: --speculative-config '{"method": "ngram"}'.
  mapfile -d '' -t flags < <(xargs -r printf '%s\0' <<<"$SERVER_FLAGS")
  wait "$!" || fail "SERVER_FLAGS: the quotes in it do not match: $SERVER_FLAGS"
  COMMAND=("$PYTHON" -m r1_recipes.vllm_server "$RECIPE" "${SERVER_ARGUMENTS[@]}" ${OVERRIDES[@]+"${OVERRIDES[@]}"})
  if ((${#flags[@]})); then COMMAND+=(-- "${flags[@]}"); fi
  tensor=$(last_value 'tensor_parallel_size|tp' ${flags[@]+"${flags[@]}"} || setting vllm_tensor_parallel_size)
  data=$(last_value 'data_parallel_size|dp' ${flags[@]+"${flags[@]}"} || true)
  note "the server on $SERVER_HOST uses ${tensor:-1} (tensor parallel) x ${data:-1} (data parallel) of $GPUS_PER_NODE GPUs"
}

# Sets ENVIRONMENT, the line of shell that a host's environment begins with. It goes over the connection: a secret in a command could be read
# by everybody there.
set_environment() {
  local names name
  ENVIRONMENT=''
  read -r -a names <<<"$PASS_ENV"
  for name in ${names[@]+"${names[@]}"}; do
    [[ $name =~ ^[A-Za-z_][A-Za-z_0-9]*$ && -v $name ]] || fail "PASS_ENV: found '$name'; names of variables that are set here, such as HF_TOKEN"
    ENVIRONMENT+="export $name=$(printf %q "${!name}"); "
  done
}

# Runs training on TRAIN_HOSTS, and on SERVER_HOST (unless empty) the server; ends with the status of what ended first otherwise than well.
# The launcher that sources this defines
#   set_connection HOST COMMAND…    sets CONNECTION to the command that runs COMMAND on HOST, and hands its own input on to it
run_everything() {
  local rank count=${#TRAIN_HOSTS[@]}
  TRAINERS=() SERVER='' SERVER_ARGUMENTS=() PROXY=() STOPPING=''
  check_processes
  set_environment
  if [[ -n $SERVER_HOST ]]; then
    set_server_arguments "$SERVER_HOST"
    # A proxy for the outside world must not stand between trainer and server.
    PROXY=("no_proxy=${no_proxy:+$no_proxy,}${SERVER_HOST#*@}" "NO_PROXY=${NO_PROXY:+$NO_PROXY,}${SERVER_HOST#*@}")
    set_server_command
  fi
  if [[ -z $DRY_RUN ]]; then
    # Every connection's input hangs on one of two pipes whose writing end only this script holds. That it closes is how the hosts learn of
    # the end. Signals would not do: ssh hands none on, and srun makes SIGKILL of SIGTERM.
    PIPES=$(mktemp -d)
    mkfifo "$PIPES/trainer" "$PIPES/server"
    exec 8<>"$PIPES/trainer" 9<>"$PIPES/server"
    trap 'rm -rf "$PIPES"' EXIT
  fi
  if [[ -n $SERVER_HOST ]]; then
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

# Words as a person would write them for a shell.
quoted() {
  local word line=''
  for word in "$@"; do
    if [[ $word =~ ^[A-Za-z0-9_@%+=:,./-]+$ ]]; then line+=" $word"; else line+=" ${word@Q}"; fi
  done
  printf '%s' "${line# }"
}

# Runs COMMAND on a host: launch KIND HOST; KIND is trainer or server.
launch() {
  local kind=$1 host=$2
  LAUNCHED=''
  set_connection "$host" bash launch/on_host.sh "$STOP_SECONDS" env ${PROXY[@]+"${PROXY[@]}"} "${COMMAND[@]}"
  if [[ -n $DRY_RUN ]]; then
    printf '%s: %s\n' "$host" "$(quoted "${CONNECTION[@]}")"
    return
  fi
  "${CONNECTION[@]}" 8>&- 9>&- < <(host_input "$kind") &
  LAUNCHED=$!
}

# What launch/on_host.sh reads: the environment, nothing until the pipe of its kind closes, and the time that it has then.
host_input() {
  exec 8>&- 9>&-
  printf '%s\n' "$ENVIRONMENT"
  cat "$PIPES/$1"
  cat "$PIPES/seconds" 2>/dev/null
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
      status=130 ended=asked
      break
    fi
    for index in "${!TRAINERS[@]}"; do
      alive "${TRAINERS[index]}" && continue
      wait "${TRAINERS[index]}" || status=$?
      unset 'TRAINERS[index]'
      if ((status)); then
        note "training on ${TRAIN_HOSTS[index]} ended with status $status; the others are stopped"
        ended=failed
        break
      fi
    done
    if [[ -z $ended ]] && ! ((${#TRAINERS[@]})); then ended=well; fi
    if [[ -z $ended && -n $SERVER ]] && ! alive "$SERVER"; then
      wait "$SERVER" || status=$?
      note "the server on $SERVER_HOST ended with status $status before training did"
      ((status)) || status=1
      ended=failed
    fi
  done
  if [[ $ended == failed ]]; then
    # What is left waits for what is gone: it can save nothing. torch's agent took up to 30 s to report a dead rank; all in all, a minute.
    interrupt trainer 20
    interrupt server 20
    await 25 ${TRAINERS[@]+"${TRAINERS[@]}"} ${SERVER:+"$SERVER"}
  else
    # Training first: its last step still asks the server for completions.
    interrupt trainer "$STOP_SECONDS"
    await $((STOP_SECONDS + 5)) ${TRAINERS[@]+"${TRAINERS[@]}"}
    interrupt server "$STOP_SECONDS"
    await $((STOP_SECONDS + 5)) ${SERVER:+"$SERVER"}
  fi
  return "$status"
}

# Asks the hosts of one kind to end within a time: interrupt KIND SECONDS
interrupt() {
  printf '%s\n' "$2" >"$PIPES/seconds"
  case $1 in trainer) exec 8>&- ;; server) exec 9>&- ;; esac
}

# Waits for processes, and ends those that take longer than the hosts have: await SECONDS [PID…]
await() {
  local pid left deadline=$((SECONDS + $1))
  shift
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
  if (($#)); then wait "$@" 2>/dev/null || true; fi
}
