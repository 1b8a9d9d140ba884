# shellcheck shell=bash
# A cluster of this machine, of processes.sh's processes. Sourced by deploy/quickstart and tests/gpu/run, which set
# `bin`, the folder of the programs, and may give every shard settings: shard_settings=(--set KEY=VALUE).
# shellcheck disable=SC2154 # bin and run are of who sources this

shard_settings=()

# coordinator_start ADDRESS SHARDS FOLDER: sets `endpoint`.
coordinator_start() {
    local ready=$run/coordinator.ready
    rm -f "$ready"
    process_start coordinator "$bin/cairn-coordinator" --ready-file "$ready" \
        --set network.listen="$1" --set cluster.shards="$2" \
        --set store.path="$3/coordinator" --set snapshots.path="$3/snapshots"
    wait_until 20 "the coordinator to listen" test -s "$ready"
    endpoint=$(cat "$ready")
    export CAIRN_ENDPOINT=$endpoint
}

# shard_start NAME FOLDER: it joins when FOLDER/NAME.ready is there.
shard_start() {
    process_start "$1" "$bin/cairn-shard" --ready-file "$2/$1.ready" \
        --set shard.name="$1" --set shard.coordinator="$endpoint" \
        --set memory.limit=1GiB --set compute.threads=1 "${shard_settings[@]}"
}

# cluster_start SHARDS FOLDER
cluster_start() {
    local i
    mkdir -p "$2/snapshots"
    coordinator_start "$2/coordinator.sock" "$1" "$2"
    shards=()
    for ((i = 1; i <= $1; i++)); do
        shards+=("shard-$i")
        shard_start "shard-$i" "$2"
    done
    for ((i = 1; i <= $1; i++)); do
        wait_until 20 "shard-$i to join" test -s "$2/shard-$i.ready"
    done
    say "a coordinator and $1 shards are up at $endpoint"
}

# Shards first: that their coordinator goes would be news to them.
cluster_stop() {
    local said="a daemon did not end cleanly on SIGTERM"
    process_stop "${shards[@]}" || fail "$said"
    process_stop coordinator || fail "$said"
}

# cairn ARGUMENTS...: the command line, whose sentence on a failure is kept for `fail`.
cairn() { "$bin/cairn" "$@" 2>>"$run/cairn.log" || fail "cairn $*"; }

# json_field NAME: of one of the objects that cairn prints with -o json.
json_field() { sed -nE 's/^ *"'"$1"'": "?([^",]*)"?,?$/\1/p'; }
