#!/usr/bin/env bash
# Runs a host's command: launch/on_host.sh [--input] COMMAND… . SIGTERM goes to all that it started, and all is waited for: accelerate leaves a
# single training process to itself, which then saves its checkpoint. After STOP_SECONDS (240) and 30 s SIGKILL follows.
# With --input, which ssh needs, a first line of input sets the environment, and the end of input counts as SIGTERM.
set -uo pipefail
input='' stop_at=''
if [[ $1 == --input ]]; then
  input=yes
  shift
  IFS= read -r environment || exit 1 # the launcher is gone already
  eval "$environment"
fi
exec 3<&0
setsid "$@" </dev/null 3<&- &
command=$!

stop() {
  trap '' TERM INT HUP # training takes a second signal for "at once"
  stop_at=$((SECONDS + ${STOP_SECONDS:-240} + 30))
  kill -TERM -- "-$command" 2>/dev/null || kill -TERM "$command" 2>/dev/null
}
trap stop TERM INT HUP
if [[ $input ]]; then { cat && kill -TERM $$; } <&3 >/dev/null 2>&1 & fi
while kill -0 "$command" 2>/dev/null || { [[ $stop_at ]] && kill -0 -- "-$command" 2>/dev/null; }; do
  [[ -z $stop_at ]] || ((SECONDS < stop_at)) || { kill -KILL -- "-$command" && break; }
  sleep 0.5
done
wait "$command"
