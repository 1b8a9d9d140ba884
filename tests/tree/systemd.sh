#!/bin/bash
# The units: systemd finds nothing wrong with them, calls them hardened, and the daemons take their lines.
# usage: systemd.sh SOURCE_FOLDER BUILD_FOLDER    77: there is no systemd-analyze
set -euo pipefail
command -v systemd-analyze >/dev/null || { echo "skip: systemd-analyze is not installed"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

# It wants to see the programs and the user: here they are this build's and a user of every system.
for unit in cairn-coordinator.service cairn-shard@.service; do
    sed -E "s|^ExecStart=[^ ]*/|ExecStart=$2/bin/|; s|^User=.*|User=daemon|" "$1/deploy/systemd/$unit.in" >"$tmp/$unit"
    grep -q '@CMAKE' "$tmp/$unit" && fail "$unit: a variable was left"
done
ln -s cairn-shard@.service "$tmp/cairn-shard@0.service"
ln -s cairn-shard@.service "$tmp/cairn-shard@gpu.service" # with what a node with GPUs adds
mkdir "$tmp/cairn-shard@gpu.service.d"
cp "$1/deploy/systemd/cairn-shard-gpu.conf" "$tmp/cairn-shard@gpu.service.d/gpu.conf"
sed 's|/usr/bin/nvidia-modprobe|/bin/true|' "$1/deploy/systemd/cairn-gpu-devices.service" \
    >"$tmp/cairn-gpu-devices.service"
for unit in cairn-coordinator.service cairn-shard@0.service cairn-shard@gpu.service; do
    # It exits with 0 after a key that it does not know, but not without a word.
    said=$(SYSTEMD_LOG_LEVEL=warning systemd-analyze verify --man=no "$tmp/$unit" 2>&1) || fail "$unit: $said"
    said=$(grep -F cairn <<<"$said" || true) # of other units on this machine it may say anything
    [ -z "$said" ] || fail "$unit: $said"
    most=15
    [ "$unit" != cairn-shard@gpu.service ] || most=16 # which sees devices
    systemd-analyze security --no-pager --offline=true --threshold=$most "$tmp/$unit" >"$tmp/security" ||
        fail "$unit is exposed more than $most tenths: $(tail -n 1 "$tmp/security")"
    tail -n 1 "$tmp/security"
done

# Nodes and groups of devices are there before the filter of the shard's unit is made: nothing is made within it.
said=$(systemd-analyze verify --man=no "$tmp/cairn-gpu-devices.service" 2>&1) || fail "cairn-gpu-devices.service: $said"
! grep -F cairn <<<"$said" || fail "cairn-gpu-devices.service: $said"
grep -q '^After=cairn-gpu-devices.service$' "$tmp/cairn-shard@gpu.service.d/gpu.conf" ||
    fail "a shard with a GPU does not wait for the device nodes"
! grep -q '^Exec' "$tmp/cairn-shard@gpu.service.d/gpu.conf" || fail "the drop-in runs a program within its filter"

# Who holds the state of a run is not killed for being silent.
grep -q '^WatchdogSec=' "$tmp/cairn-shard@.service" && fail "the shard's unit has a watchdog"
grep -q '^WatchdogSec=' "$tmp/cairn-coordinator.service" || fail "the coordinator's unit has no watchdog"

# systemd keeps as many descriptors as a shard may store.
most=$(sed -n 's/^#define CAIRN_KEEPER_FDS_MAX *//p' "$1/server/base/keeper.h")
grep -qx "FileDescriptorStoreMax=$most" "$tmp/cairn-shard@.service" || fail "the unit does not keep $most descriptors"

# UCX looks through /proc when it is loaded, and complains on stdout where ProcSubset=pid hides it.
ldd "$2/bin/cairn-coordinator" | grep -q libuc && fail "the coordinator loads UCX, which its unit has no use for"

# The words of ExecStart, with the samples for configurations.
for daemon in cairn-coordinator:coordinator cairn-shard:shard; do
    unit=$(echo "$tmp/${daemon%:*}"*.service | cut -d ' ' -f 1)
    read -ra line < <(sed -zE 's|\\\n *||g' "$unit" | sed -nE "s|^ExecStart=||; T; s|%l|node|; s|%i|0|g; s|%t|/run|; \
        s|/etc/cairn/${daemon#*:}.conf|$1/deploy/${daemon%:*}.conf.sample|; p")
    "${line[@]}" --check-config >/dev/null || fail "${line[*]}"
done
