#!/usr/bin/env bash
# Trains under the placement 'standard' once; the log of it is runs/demo.log.
# Options of `placebench run` may follow: bash demo.sh --steps 3
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/scripts/one_launch.sh" standard demo "$@"
