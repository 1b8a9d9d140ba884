#!/bin/bash
# However the quickstart ends, in the middle of a training, no process and no folder of it is left; after
# SIGKILL, which no trap sees, no process. usage: quickstart_leaves_nothing.sh SOURCE_FOLDER BIN_FOLDER
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

# Programs that have the folder on their command line or in their environment; not this grep itself.
left() { grep -lsE "$tmp/[r]un" /proc/[0-9]*/cmdline /proc/[0-9]*/environ || true; }

wait_until_gone() {
    local deadline=$((SECONDS + 15))
    while [ -n "$(left)" ]; do
        [ "$SECONDS" -lt "$deadline" ] || fail "after SIG$1 these are left: $(left)"
        sleep 0.1
    done
}

for signal in TERM INT KILL; do
    mkdir "$tmp/run"
    : >"$tmp/log" # with the last one's "step 50" in it the signal could meet this shell's child before it is env
    # A shell without job control starts background programs with SIGINT ignored; env takes that back.
    env --default-signal=INT TMPDIR="$tmp/run" "$1/deploy/quickstart" --bin "$2" >"$tmp/log" 2>&1 &
    quickstart=$!
    deadline=$((SECONDS + 60))
    until grep -q '^ *step 50 ' "$tmp/log"; do
        kill -0 "$quickstart" 2>/dev/null || { cat "$tmp/log"; fail "the quickstart ended by itself"; }
        [ "$SECONDS" -lt "$deadline" ] || { cat "$tmp/log"; fail "it did not begin to train"; }
        sleep 0.1
    done
    kill -"$signal" "$quickstart"
    status=0
    wait "$quickstart" || status=$?
    [ "$status" -ne 0 ] || fail "exit status 0 after SIG$signal"
    wait_until_gone "$signal"
    [ $signal = KILL ] || [ -z "$(ls -A "$tmp/run")" ] || fail "after SIG$signal: $(ls "$tmp/run")"
    rm -rf "$tmp/run"
done
