#!/bin/bash
# Every .c and .h stands as .clang-format says, in the words of one version of the tool: others break lines
# elsewhere. usage: format.sh SOURCE_FOLDER    77: that version is not there
set -euo pipefail
version=14 # Debian 12's; Debian 13 has none of it
cd "$1"
tool=$(command -v "clang-format-$version" || command -v clang-format) ||
    { echo "skip: clang-format is not installed"; exit 77; }
[[ $("$tool" --version) == *"version $version."* ]] ||
    { echo "skip: the tree is formatted by clang-format $version, and this is $("$tool" --version)"; exit 77; }
find client gpu proto server tests -name '*.[ch]' -print0 | xargs -0 "$tool" --dry-run -Werror
