#!/bin/bash
# Every .c and .h stands as .clang-format says. usage: format.sh SOURCE_FOLDER    77: there is no clang-format
set -euo pipefail
cd "$1"
command -v clang-format >/dev/null || { echo "skip: clang-format is not installed"; exit 77; }
find client gpu proto server tests -name '*.[ch]' -print0 | xargs -0 clang-format --dry-run -Werror
