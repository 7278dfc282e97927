#!/usr/bin/env bash
# one_launch.sh PLACEMENT NAME [OPTION …]
#
# Runs one launch of a placement through `placebench run` and leaves runs/NAME.log: what the command said, then what
# the training job said, with verl's `step:N - …` line for each step. Ends with the command's exit code.
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
started=$(mktemp)
trap 'rm -f "$started"' EXIT

# The run's folder is found by its name and place, so these options come last and win over the caller's.
code=0
"$placebench" run --rounds 1 "$@" --placements "$placement" --name "$name" --out "$runs" 2>&1 |
    tee --ignore-interrupts "$log" || code=${PIPESTATUS[0]}

find "$runs" -mindepth 4 -maxdepth 4 -path "$runs/*Z-$name/trials/*/train.log" -newer "$started" | sort |
    while read -r train_log; do
        printf '\n== %s\n' "${train_log#"$root"/}"
        cat "$train_log"
    done >> "$log"
echo "log: ${log#"$root"/}"
exit "$code"
