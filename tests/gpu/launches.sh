#!/bin/bash
# How much of a card a step takes: bytes an element, and launches. These the emulated card counts as any other does.
# usage: launches.sh FOLDER_OF_THE_PROGRAMS
set -euo pipefail
. "$(dirname "$0")/../e2e/bench_said.sh"

# fields NAMES ARGUMENTS...: what the bench says of them, params and parts.
fields() {
    local names=$1
    shift
    "$cairn" bench "$@" --backend cuda --seconds 0.001 -o json | python3 -c 'import json, sys
said = json.load(sys.stdin)
print(*(round((said["params"] | said["parts"])[name]) for name in sys.argv[1].split()))' "$names"
}

# Two contributions in bf16 are read, the sum written, and read; and so on: client/ctl/bench/update.c.
read -r bytes launches < <(fields "bytes_per_param launches" update --params 20M)
[ "$bytes" -eq 38 ] || fail "cairn bench update counts $bytes bytes an element, not 38"
[ "$launches" -le 8 ] || fail "cairn bench update makes $launches launches, not 8 at most"

# Of a worker whose gradients lie on the card: 38 with the chunks in flight that landing slots allow. What others
# leave of the processors decides how many come while a list is at work: the least of three runs counts.
seen=""
for _ in 1 2 3; do
    read -r launches < <(fields shard_launches step --params 5M --memory device --workers 1 --shards 1)
    seen+=" $launches"
    [ "$launches" -gt 12 ] || exit 0
done
fail "cairn bench step makes$seen launches, and not once 12 at most"
