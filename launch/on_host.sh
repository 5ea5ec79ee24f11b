#!/usr/bin/env bash
# Runs one host's command, and ends it with all that it started when the launcher asks for that or is gone. launch/common.sh starts it there:
#
#   launch/on_host.sh SECONDS COMMAND…
#
# Its input is the launcher: first a line of shell that sets the environment, then nothing until the command is to end. At the end of input,
# and on SIGTERM, the command gets SIGTERM, and what is left of it after SECONDS gets SIGKILL. A second line of input is another SECONDS.
set -uo pipefail
seconds=$1
shift
IFS= read -r environment || exit 1 # the launcher is gone already
eval "$environment"

# Workers of torch have sessions of their own; all that the command starts is known by this in its environment.
mark=R1_RECIPES_LAUNCH=$HOSTNAME.$$.$(date +%s)
stopping='' deadline=''
trap 'stopping=yes' TERM INT HUP
setsid env "$mark" "$@" </dev/null &
command=$!

# The processes of the command that are left, by their numbers.
left() {
  grep -lszxF "$mark" /proc/[0-9]*/environ | sed -n 's|^/proc/\([0-9]*\)/environ$|\1|p'
}

running() {
  # Told to end, accelerate leaves a single process of training to itself, which then saves its checkpoint.
  kill -0 "$command" 2>/dev/null || [[ -n $stopping && -n $(left) ]]
}

kill_left() {
  local pid
  kill -KILL -- "-$command" 2>/dev/null
  for pid in $(left); do kill -KILL "$pid" 2>/dev/null; done
}

while running; do
  if [[ -z $stopping ]]; then
    # Asked first, since a read with a time limit can end in the middle of a line.
    if ! read -r -t 0; then
      sleep 0.5
    elif IFS= read -r line; then
      seconds=$line
    else
      stopping=yes
    fi
  elif [[ -z $deadline ]]; then
    kill -TERM -- "-$command" 2>/dev/null || kill -TERM "$command" 2>/dev/null
    deadline=$((SECONDS + seconds))
  else
    if ((SECONDS >= deadline)); then kill_left; fi
    sleep 0.2
  fi
done
wait "$command"
status=$?
if [[ -n $stopping ]] || ((status)); then kill_left; fi
exit "$status"
