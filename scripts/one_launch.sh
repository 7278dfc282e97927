#!/usr/bin/env bash
# one_launch.sh PLACEMENT NAME [OPTION …]
#
# Runs one launch of a placement through `placebench run` and leaves runs/NAME.log: what the command said, then what
# the training job said, with verl's `step:N - …` line for each step. Where no launch was started, as with a wrong option,
# an earlier runs/NAME.log stays. Ends with the command's exit code; a signal that ends this shell ends the run too, and
# the shell only then.
set -euo pipefail

placement=$1 name=$2
shift 2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
runs=$root/runs
log=$runs/$name.log

placebench=$root/.venv/bin/placebench
if [ ! -x "$placebench" ] && ! placebench=$(command -v placebench); then
    echo "$name: placebench is not installed: run 'make demo' once, or pip install -e '.[run]'" >&2
    exit 2
fi

mkdir -p "$runs"
before=$log.before
if [ -e "$log" ]; then mv "$log" "$before"; fi
scratch=$(mktemp -d)
mkfifo "$scratch/said"
started=$scratch/started
touch "$started"

# The logs of the training jobs that were started since.
train_logs() {
    find "$runs" -mindepth 4 -maxdepth 4 -path "$runs/*Z-$name/trials/*/train.log" -newer "$started" | sort
}

# However this ends, also by a signal: one of both logs is there, under its name.
# shellcheck disable=SC2317  # the trap calls it
finish() {
    if [ -e "$before" ] && [ -z "$(train_logs)" ]; then mv "$before" "$log"; fi
    rm -rf "$before" "$scratch"
}
trap finish EXIT

# A shell acts on a signal only when the program that it waits for has ended, unless that runs beside it.
signal='' run=''
# shellcheck disable=SC2317  # the traps call it
stop() {
    signal=$1
    if [ -n "$run" ]; then kill -s "$signal" "$run" 2>/dev/null || true; fi
}
for number in INT QUIT HUP TERM USR1 USR2; do
    # shellcheck disable=SC2064  # of this turn
    trap "stop $number" "$number"
done

# Reads until the run has said all, whatever signal comes.
(trap '' INT QUIT HUP TERM USR1 USR2 && exec tee "$log" <"$scratch/said") &
tee=$!
# The run's folder is found by its name and place, so these options come last and win over the caller's.
# What a shell starts beside it ignores Ctrl-C, unless it is told otherwise.
(
    trap - INT QUIT
    exec "$placebench" run --rounds 1 "$@" --placements "$placement" --name "$name" --out "$runs"
) >"$scratch/said" 2>&1 &
run=$!
if [ -n "$signal" ]; then kill -s "$signal" "$run" 2>/dev/null || true; fi

# A signal ends the waiting, and not what is waited for.
await() {
    while :; do
        signal='' code=0
        wait "$1" || code=$?
        if [ -z "$signal" ]; then return; fi
    done
}
await "$run"
ended=$code run=''
: <>"$scratch/said" # one that a signal has ended before it could say anything has not opened it
await "$tee"

train_logs | while read -r train_log; do
    printf '\n== %s\n' "${train_log#"$root"/}"
    cat "$train_log"
done >> "$log"
if [ -e "$before" ] && [ -z "$(train_logs)" ]; then
    echo "log: ${log#"$root"/} is that of an earlier demo: no launch was started"
else
    echo "log: ${log#"$root"/}"
fi
exit "$ended"
