#!/usr/bin/env bash
# Runs a node's command and hands SIGTERM to all that it started: accelerate leaves a single training process to itself, which then saves its
# checkpoint. All of it is waited for; SIGKILL follows after STOP_SECONDS (240) and 30 s.
set -uo pipefail
stop_at=''
setsid "$@" </dev/null &
command=$!

stop() {
  trap '' TERM INT HUP # training takes a second signal for "at once"
  stop_at=$((SECONDS + ${STOP_SECONDS:-240} + 30))
  kill -TERM -- "-$command" 2>/dev/null || kill -TERM "$command" 2>/dev/null
}
trap stop TERM INT HUP
while kill -0 "$command" 2>/dev/null || { [[ $stop_at ]] && kill -0 -- "-$command" 2>/dev/null; }; do
  [[ -z $stop_at ]] || ((SECONDS < stop_at)) || { kill -KILL -- "-$command" && break; }
  sleep 0.5
done
wait "$command"
