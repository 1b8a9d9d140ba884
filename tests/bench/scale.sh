#!/bin/bash
# The tables of scale.md are those that the planner of today makes.
# usage: scale.sh PROGRAM SCALE_MD
set -euo pipefail
"$1" | diff "$2" - || { echo "FAILED: build/bin/tests/scale >tests/bench/scale.md"; exit 1; }
