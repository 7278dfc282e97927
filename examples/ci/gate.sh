#!/usr/bin/env bash
# gate.sh BEFORE AFTER [OUT]: is the code in the folder AFTER slower than that in the folder BEFORE?
#
# Both are measured on this machine, one after the other, with the job of smoke.yaml; a baseline that OUT has already is
# used again. Ends with the exit code of `placebench check`, or of the run that failed: 0 fine, 1 regression, 2 wrong
# input, 3 launches failed or too few, 4 no baseline that compares, 124 time limit, 130 interrupted.
#
# MAX_REGRESSION (default 25%) and TIME_LIMIT (seconds of a run, default 120) come from the environment.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
before=$(cd "$1" && pwd)
after=$(cd "$2" && pwd)
out=${3:-gate}

# measure NAME FOLDER: run the job with the folder's code; the run's folder is then in $run.
measure() {
    rm -rf "${out:?}/$1"
    PYTHONPATH="$2${PYTHONPATH:+:$PYTHONPATH}" placebench run --config "$here/smoke.yaml" --name "$1" \
        --out "$out/$1" --time-limit "${TIME_LIMIT:-120}"
    run=$(echo "$out/$1"/*)
}

if [ ! -e "$out/baseline.json" ]; then
    measure before "$before"
    placebench baseline save "$run" "$out/baseline.json"
fi
measure after "$after"
placebench check "$run" --baseline "$out/baseline.json" --max-regression "${MAX_REGRESSION:-25%}" \
    --junit "$out/gate.xml" --json "$out/gate.json"
