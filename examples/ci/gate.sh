#!/usr/bin/env bash
# gate.sh BEFORE AFTER [OUT]: is the code in the folder AFTER slower than that in the folder BEFORE?
#
# Both are measured on this machine with the job of smoke.yaml, launch by launch in turn and in alternating order, so
# that whatever else the machine does meets both alike. Ends with the exit code of `placebench check`, or of the run
# that failed: 0 fine, 1 regression, 2 wrong input, 3 launches failed or too few, 4 not comparable, 124 time limit, 130
# interrupted.
#
# OUT, the folder gate where it is left out, gets the runs, the tables and gate.xml and gate.json; those of an earlier
# call are deleted.
#
# From the environment: PAIRS of launches (default 4), MAX_REGRESSION (25%), TIME_LIMIT in seconds of a launch (120).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# Not 1, which is a regression.
wrong() {
    echo "gate.sh: $1" >&2
    exit 2
}
(($# == 2 || $# == 3)) || wrong "name two folders of code: gate.sh BEFORE AFTER [OUT]"
[[ -d $1 && -d $2 ]] || wrong "there is no folder $([[ -d $1 ]] && echo "$2" || echo "$1")"
command -v placebench >/dev/null || wrong "there is no placebench on PATH: pip install 'placebench[run]'"
before=$(cd "$1" && pwd)
after=$(cd "$2" && pwd)
out=${3:-gate}

# measure NAME FOLDER: one launch of the job with the folder's code; all runs of a name are then in ${runs[NAME]}.
declare -A runs
measure() {
    PYTHONPATH="$2${PYTHONPATH:+:$PYTHONPATH}" placebench run --config "$here/smoke.yaml" --name "$1" \
        --out "$out/$1-$pair" --time-limit "${TIME_LIMIT:-120}" >"$out/$1-$pair.txt"
    runs[$1]+="${runs[$1]:+,}$(echo "$out/$1-$pair"/*)"
}

rm -rf "${out:?}"/{before,after}-* "$out"/gate.{xml,json}
mkdir -p "$out"
for ((pair = 1; pair <= ${PAIRS:-4}; pair++)); do
    if ((pair % 2)); then
        measure before "$before"
        measure after "$after"
    else
        measure after "$after"
        measure before "$before"
    fi
done
placebench check "${runs[after]}" --baseline "${runs[before]}" --paired --max-regression "${MAX_REGRESSION:-25%}" \
    --junit "$out/gate.xml" --json "$out/gate.json"
