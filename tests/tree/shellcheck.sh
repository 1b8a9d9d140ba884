#!/bin/bash
# No complaints of shellcheck about any script. usage: shellcheck.sh SOURCE_FOLDER    77: there is no shellcheck
set -euo pipefail
cd "$1"
command -v shellcheck >/dev/null || { echo "skip: shellcheck is not installed"; exit 77; }
mapfile -t scripts < <(grep -rlE '^#!/bin/(ba)?sh|^# shellcheck shell=' .ci deploy tests)
[ "${#scripts[@]}" -ge 5 ] || { echo "FAILED: only ${#scripts[@]} scripts were found"; exit 1; }
shellcheck -x -P SCRIPTDIR "${scripts[@]}"
