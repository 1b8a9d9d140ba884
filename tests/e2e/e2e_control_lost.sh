#!/bin/bash
# A trainer whose control connection breaks, twice, while both it and the coordinator live: it attaches
# again and trains on within seconds. (One end alone remaking a UCX endpoint cost 16 s.)
# usage: e2e_control_lost.sh FOLDER_OF_THE_PROGRAMS
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=deploy/lib/processes.sh
. "$root/deploy/lib/processes.sh"
bin=$1
on_wait() { :; }

[ -e /usr/share/datasets/fashion-mnist ] || { echo "skip: dataset-fashion-mnist is not installed"; exit 77; }

# step_is_past STEP: asked of the coordinator directly. Sets `step`.
step_is_past() {
    step=$("$bin/cairn" --endpoint "$(cat "$run/coordinator")" job show fashion-mnist -o json 2>>"$run/cairn.log" |
        sed -nE 's/^ *"step": ([0-9]+),?$/\1/p') && [ "${step:-0}" -gt "$1" ]
}

processes_begin
process_start coordinator "$bin/cairn-coordinator" --ready-file "$run/ready" \
    --set network.listen="$run/socket 127.0.0.1:0" \
    --set cluster.shards=2 --set store.path="$run/store" --set snapshots.path="$run/snapshots"
wait_until 20 "the coordinator" test -s "$run/ready"
cut -d' ' -f2 "$run/ready" >"$run/coordinator"
"$bin/cairn" --endpoint "$run/socket" key add test --role worker,reader,shard,monitor --to "$run/token" \
    >"$run/cairn.log"
export CAIRN_TOKEN_FILE=$run/token
for i in 1 2; do
    process_start "shard-$i" "$bin/cairn-shard" --ready-file "$run/shard-$i" --set shard.name="shard-$i" \
        --set shard.coordinator="$(cat "$run/coordinator")" --set shard.state="$run/state" --set memory.limit=1GiB \
        --set compute.threads=1
    wait_until 20 "shard-$i" test -s "$run/shard-$i"
done
process_start relay "$root/tests/support/tcp_relay.py" "$(cat "$run/coordinator")" "$run/relay"
wait_until 20 "the relay" test -s "$run/relay"
process_start worker "$bin/fashion_mnist" --endpoint "$(cat "$run/relay")" --steps 1000000 --timeout 60

wait_until 60 "the worker to train" step_is_past 5
for _ in 1 2; do
    kill -USR1 "${process_id[relay]}"
    wait_until 12 "the worker to train on after its connection was cut" step_is_past $((step + 2))
done
joined=$(grep -c ' joined job ' "$run/coordinator.log" || true)
[ "$joined" -eq 3 ] || fail "the worker joined $joined times, not 3: its connection was not cut twice"
echo "cut twice, trained on to step $step"
