#!/bin/bash
# Snapshots are made and removed by a process that is killed at each of its system calls in turn, and by one whose
# calls fail, each in turn: what is listed afterwards is whole, and what was there before is there.
# usage: e2e_storage_kills.sh BIN_FOLDER    CAIRN_TEST_LONG=1: each call, and more ways to fail
set -euo pipefail
steps=$1/tests/storage_steps
# In memory a point takes 0.1 s; a disk, and writes around the page cache, in a long run.
[ -n "${CAIRN_TEST_LONG:-}" ] || [ ! -w /dev/shm ] || TMPDIR=/dev/shm
tmp=$(TMPDIR=${TMPDIR:-/tmp} mktemp -d -t cairn-test-XXXXXX)
trap 'rm -rf "$tmp"' EXIT
command -v strace >/dev/null || { echo "skip: strace is not installed"; exit 77; }
strace -qq -o "$tmp/log" true 2>/dev/null || { echo "skip: strace may not trace here"; exit 77; }
calls="openat mkdirat fallocate pwrite64 ftruncate fsync close renameat write unlinkat"
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 # which nobody can who is traced
stride=${CAIRN_TEST_LONG:+1}
stride=${stride:-4} # every fourth call: the others in a long run

fail() { echo "FAILED: $*"; exit 1; }

# good ROOT ID...: what is listed is whole, and has these.
good() {
    local root=$1 id
    shift
    "$steps" check "$root" >"$tmp/ids" || fail "$what: $(cat "$tmp/ids")"
    for id in "$@"; do grep -qx "$id" "$tmp/ids" || fail "$what: $id is gone: $(cat "$tmp/ids")"; done
}

# each CALL FAULT COMMAND STEP ID...: the n-th call of COMMAND meets the fault, for each n until there is none.
each() {
    local call=$1 fault=$2 command=$3 step=$4 n rc root=$tmp/root
    shift 4
    for ((n = 1; n < 400; n += stride)); do
        what="$command, $call $n, $fault"
        rm -rf "$root"
        cp -r "$tmp/base" "$root"
        rc=0
        ( # whose shell says "Killed" to nobody
            strace -f -qq -o "$tmp/log" -e "trace=$call" -e "inject=$call:$fault:when=$n" \
                "$steps" "$command" "$root" "$step" >/dev/null 2>"$tmp/said"
            exit $?
        ) 2>/dev/null || rc=$?
        good "$root" "$@"
        case $fault in
        signal*) [ "$rc" -ne 0 ] || return 0 ;; # nobody was killed: there is no n-th
        *)
            grep -q INJECTED "$tmp/log" || return 0
            [ "$rc" -eq 0 ] || grep -q . "$tmp/said" || fail "$what: it fails without a word" ;;
        esac
        points=$((points + 1))
    done
    fail "$what: so many calls?"
}

mkdir "$tmp/base"
"$steps" create "$tmp/base" 1
"$steps" create "$tmp/base" 2
first=step-000000000001-g1 second=step-000000000002-g1
points=0
for call in $calls; do
    each "$call" signal=SIGKILL create 3 $first $second
    each "$call" signal=SIGKILL remove 1 $second
done
for call in fallocate pwrite64 fsync renameat mkdirat openat write unlinkat; do
    each "$call" error=EIO create 3 $first $second
    each "$call" error=EIO remove 1 $second
    [ -z "${CAIRN_TEST_LONG:-}" ] || each "$call" error=ENOSPC create 3 $first $second
done

# Nothing is synced twice, whatever happens: each file and folder once a name that it has got.
what="fsync"
rm -rf "$tmp/root"
cp -r "$tmp/base" "$tmp/root"
strace -f -qq -y -o "$tmp/log" -e trace=fsync -e inject=fsync:error=EIO:when=8 \
    "$steps" create "$tmp/root" 3 2>"$tmp/said" && fail "an fsync that fails fails nothing"
grep -q "fsync of" "$tmp/said" || fail "no sentence of an fsync: $(cat "$tmp/said")"
twice=$(grep -o 'fsync([^)]*\.tmp>)' "$tmp/log" | sort | uniq -d)
[ -z "$twice" ] || fail "synced twice: $twice"
good "$tmp/root" $first $second
echo "$points points, each $stride. call"
