#!/usr/bin/env bash
# one_launch.sh PLACEMENT NAME [OPTION …]
#
# Runs one launch of a placement through `placebench run` and leaves runs/NAME.log: what the command said, then what
# the training job said, with verl's `step:N - …` line for each step. Where no launch was started, as with a wrong option,
# an earlier runs/NAME.log stays. Ends with the command's exit code.
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
started=$(mktemp)

# The logs of the training jobs that were started since.
train_logs() {
    find "$runs" -mindepth 4 -maxdepth 4 -path "$runs/*Z-$name/trials/*/train.log" -newer "$started" | sort
}

# However this ends, also by a signal: one of both logs is there, under its name.
# shellcheck disable=SC2317  # the trap calls it
finish() {
    if [ -e "$before" ] && [ -z "$(train_logs)" ]; then mv "$before" "$log"; fi
    rm -f "$before" "$started"
}
trap finish EXIT

# The run's folder is found by its name and place, so these options come last and win over the caller's.
code=0
"$placebench" run --rounds 1 "$@" --placements "$placement" --name "$name" --out "$runs" 2>&1 |
    tee --ignore-interrupts "$log" || code=${PIPESTATUS[0]}

train_logs | while read -r train_log; do
    printf '\n== %s\n' "${train_log#"$root"/}"
    cat "$train_log"
done >> "$log"
if [ -e "$before" ] && [ -z "$(train_logs)" ]; then
    echo "log: ${log#"$root"/} is that of an earlier demo: no launch was started"
else
    echo "log: ${log#"$root"/}"
fi
exit "$code"
