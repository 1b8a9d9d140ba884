#!/bin/bash
# deploy/bundle: its folder (with CAIRN_TEST_LONG its archive, unpacked) trains anywhere with an empty environment,
# with the host's libc and with its own; and as root in a folder that has nothing else, where no libc is.
# usage: e2e_bundle.sh FOLDER_OF_THE_PROGRAMS
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
tmp=$(mktemp -d)
trap 'rm -rf --one-file-system "$tmp"' EXIT # what is mounted below it is gone with its namespace
trap 'exit 130' INT TERM HUP
fail() { echo "FAILED: $*"; exit 1; }

for need in patchelf:patchelf strip:binutils xz:xz-utils python3:python3; do
    command -v "${need%:*}" >/dev/null || { echo "skip: apt install ${need#*:}"; exit 77; }
done
[ -e /usr/share/datasets/fashion-mnist ] || { echo "skip: apt install dataset-fashion-mnist"; exit 77; }

kernels=()
if [ ! -s "$(dirname "$1")/kernels.fatbin" ]; then # this machine has no nvcc
    ! "$source/deploy/bundle" --build "$(dirname "$1")" --out "$tmp/out" --no-archive >"$tmp/said" 2>&1 ||
        fail "a bundle without kernels was made in silence"
    grep -q "take --no-kernels" "$tmp/said" || { cat "$tmp/said"; fail "it does not say how"; }
    kernels=(--no-kernels)
fi
bundle="$tmp/root/some where"
mkdir -p "$tmp/root"
if [ -n "${CAIRN_TEST_LONG:-}" ]; then
    "$source/deploy/bundle" --build "$(dirname "$1")" "${kernels[@]}" --out "$tmp/out" || fail "deploy/bundle"
    mkdir "$bundle"
    tar --extract --file="$(ls "$tmp"/out/*.tar.xz)" --directory="$bundle" --strip-components=1
else # the archive takes half a minute
    "$source/deploy/bundle" --build "$(dirname "$1")" "${kernels[@]}" --out "$tmp/out" --no-archive ||
        fail "deploy/bundle"
    mv "$tmp"/out/cairn-* "$bundle"
fi
rm -rf "$tmp/out"
bytes=$(tar --create --exclude=./data/fashion-mnist --directory="$bundle" . | gzip -1 | wc -c) # xz makes less of it
bytes=$((bytes + $(du --summarize --bytes "$bundle/data/fashion-mnist" | cut -f1))) # packed already
[ "$bytes" -lt $((64 << 20)) ] || fail "the bundle has $bytes bytes, packed"
echo "packed: at most $((bytes >> 20)) MiB"

# trains BUNDLE COMMAND...: a cluster and a trainer of the bundle, started by the command, come to the step.
trains() {
    local bundle=$1
    shift
    "$@" "$bundle/bin/cairn" local --shards 2 -- "$bundle/bin/fashion_mnist" --data "$bundle/data/fashion-mnist" \
        --steps 20 >"$tmp/said" 2>&1 || { cat "$tmp/said"; fail "$*: exit status $?"; }
    grep -q '^done step 20 ' "$tmp/said" || { cat "$tmp/said"; fail "$*: it did not train"; }
    echo "trained: $*"
}

# The folder as the root, with /proc, /sys and five devices and nothing else.
nowhere() {
    local device
    mkdir "$tmp/root/"{proc,sys,dev,tmp}
    mount -t proc proc "$tmp/root/proc"
    mount --rbind /sys "$tmp/root/sys"
    mount -t tmpfs tmpfs "$tmp/root/dev"
    for device in null zero random urandom; do
        touch "$tmp/root/dev/$device"
        mount --bind "/dev/$device" "$tmp/root/dev/$device"
    done
    mkdir "$tmp/root/dev/shm"
    trains "/some where" env -i "$(command -v chroot)" "$tmp/root"
}

trains "$bundle" env -i
trains "$bundle" env -i CAIRN_LIBC=own
# A driver is the host's, whosever the libc is; here an emulated one, which needs libraries of the bundle's.
driver=$(dirname "$1")/lib/emulated
for libc in host own; do
    [ -e "$driver/libcuda.so.1" ] || { echo "skip: no emulated driver is built"; break; }
    said=$(env -i CAIRN_LIBC=$libc LD_LIBRARY_PATH="$driver" "$bundle/bin/cairn" bench update --backend cuda \
        --params 300K --seconds 0.01 2>&1) || { # it has an image of kernels, or stands in for a card
        [[ $said == *"without kernels"* ]] || fail "with the libc of $libc: $said"
        echo "skip: $said"
        break
    }
    echo "a driver was loaded beside the libc of $libc"
done
PYTHONPATH=$bundle/python python3 -c 'from cairn import _c; print("loaded:", _c.lib()._name)' |
    grep -F "$bundle/python" || fail "the host's Python does not load the bundle's library"
[[ $("$bundle/tests/gpu/run" --list) == *bits* ]] || fail "tests/gpu/run does not run from the bundle"
while read -r program; do
    [ -s "$bundle/tests/bin/$program" ] || fail "tests/gpu/run has no $program in the bundle"
done < <("$bundle/tests/gpu/run" --programs)
if [ "$(id -u)" -ne 0 ] || ! unshare --mount --pid --fork true 2>/dev/null; then
    echo "skip: the empty root, which only root may make, where a machine gives namespaces"
else
    export -f trains nowhere fail
    export tmp
    unshare --mount --pid --fork --kill-child /bin/bash -euc nowhere || fail "in an empty root"
fi
left=$(find "$bundle" -newer "$tmp/said" -type f ! -path '*/__pycache__/*')
[ -z "$left" ] || fail "left in the bundle: $left"
