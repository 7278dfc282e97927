#!/usr/bin/env bash
# Trains under the placement 'split' once; the log of it is runs/demo_split.log.
# Options of `placebench run` may follow: bash demo_split.sh --steps 3
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/scripts/one_launch.sh" split demo_split "$@"
