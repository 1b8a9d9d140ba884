#!/bin/bash
# cairn bench: every bench prints what it promises, on a small model, and refuses what it does not take.
# usage: e2e_bench.sh FOLDER_OF_THE_PROGRAMS
set -euo pipefail
. "$(dirname "$0")/bench_said.sh"

refuses() {
    local status=0
    "$cairn" bench "$@" >/dev/null 2>&1 || status=$?
    [ "$status" -eq 2 ] || fail "cairn bench $*: exit status $status, not 2"
}

of update update --params 1M --threads 1
of update update --params 1M --threads 2 --wire f32
of update.adamw update --params 1M --only adamw
of update.zeros update --params 300K --only zeros
of update update --params 1M --backend host
of update.fold update --params 300K --only fold
of update.hash update --params 300K --only hash
of latency latency --workers 1 --shards 1
of layout layout --params 1G --shards 10 --tensors 100
"$cairn" bench update --params 300K --seconds 0.01 | grep -q '^ratio' || fail "no ratio in the table"

of fabric fabric
of fabric fabric --path mapped --chunk 262144
out=$(PATH=/nonexistent "$cairn" bench fabric --chunk 4194304 --seconds 0.01)
[[ $out == *"raw TCP"* ]] || fail "without ucx_perftest the reference is not raw TCP: $out"
of step step --params 300K --tensors 4 --workers 1 --shards 1 --wire f32
of step step --params 300K --tensors 4 --path mapped --read map
of step step --params 300K --tensors 4 --global-batch 5
of step step --params 300K --tensors 4 --workers 1 --shards 1 --tier process
of step step --params 300K --tensors 4 --workers 1 --shards 1 --tier peer
[[ $out == *sums_over_fabric* ]] || fail "the rate of the sums is not told"
of step step --params 300K --tensors 4 --workers 1 --shards 1 --tier log
[[ $out == *sums_over_disk* ]] || fail "the rate of the log is not told"
of tensors tensors --tensors 50 --workers 2
of tensors tensors --tensors 20 --params 300K --wire bf16 --path ucx
of open open --tensors 2000
of map map --params 300K
of map map --params 300K --shards 3 --wire bf16 --path ucx
disk=$(mktemp -d)
trap 'rm -rf "$disk"' EXIT
# Without torch, which takes a second to say hello.
echo 'raise ImportError' >"$disk/torch.py"
mkdir "$disk/here"
snapshot() { PYTHONPATH=$disk of "$@" --dir "$disk/here" --params 1M --tensors 4 2>"$disk/said"; }
snapshot snapshot.write snapshot --only write
grep -q '^skip: torch.save' "$disk/said" || fail "that there is no torch is not said: $(cat "$disk/said")"
snapshot snapshot.read snapshot --only read
snapshot snapshot.interval snapshot --only interval
snapshot snapshot.export snapshot --only export
PYTHONPATH=$disk "$cairn" bench snapshot --dir "$disk/here" --params 1M --only import >"$disk/out" 2>"$disk/said" &&
    fail "an import without torch says that it is well"
grep -q 'no python3 has torch and cairn' "$disk/said" || fail "without torch, import says: $(cat "$disk/said")"
snapshot snapshot.manifest snapshot --only manifest
status=0
PYTHONPATH=$disk timeout -s INT 1 "$cairn" bench snapshot --dir "$disk/here" --params 1M --tensors 4 --only interval \
    2>"$disk/said" || status=$?
[ "$status" -ne 0 ] || fail "an interrupted bench of snapshots says that it is well"
[ -z "$(ls "$disk/here")" ] || fail "the bench of snapshots leaves $(ls "$disk/here")"
[ -z "$(pgrep -P $$ cairn)" ] || fail "a process of the bench is left"

# The program that measures is one of its own.
mkdir "$disk/alone"
cp "$cairn" "$disk/alone/cairn"
status=0
PATH=/nonexistent "$disk/alone/cairn" bench layout 2>"$disk/said" || status=$?
[ "$status" -eq 4 ] || fail "without cairn-bench: exit status $status, not 4"
grep -q 'there is no cairn-bench beside this program' "$disk/said" || fail "without it: $(cat "$disk/said")"
PATH=$1 "$disk/alone/cairn" bench layout --params 1G --shards 10 --tensors 100 --seconds 0.01 >"$disk/said" ||
    fail "cairn-bench of PATH does not run"
[ "$("$1/cairn-bench" --help)" = "$("$cairn" bench --help)" ] || fail "cairn-bench has another usage"

# Without torch; with a shard whose process dies, is exchanged, or dies with its keeper, and with all of them dead. They
# wait for heartbeats most of the time, so they run beside each other.
recovers=()
for how in "--tier process" --planned "--tier peer" "--tier log"; do
    read -ra words <<<"$how"
    TMPDIR=$disk/here PYTHONPATH=$disk of recover recover --params 300K --tensors 4 --shards 1 --kills 1 "${words[@]}" \
        2>"$disk/said.${words[*]: -1}" &
    recovers+=($!)
done
for one in "${recovers[@]}"; do wait "$one" || fail "a bench of recovery"; done
for word in 'note: this takes up to .* of memory, and .* in ' 'skip: torchrun'; do
    grep -q "^$word" "$disk/said.process" || fail "it did not say \"$word\": $(cat "$disk/said.process")"
done
[ -z "$(ls "$disk/here")" ] || fail "the bench of recovery leaves $(ls "$disk/here")"
[ -z "$(pgrep -P $$ cairn)" ] || fail "a process of the bench is left"
status=0
"$cairn" bench recover --params 900G 2>"$disk/said" || status=$?
[ "$status" -eq 1 ] || fail "a bench that does not fit: exit status $status, not 1"
grep -q 'it needs .* of memory, and .* are free' "$disk/said" || fail "what does not fit says: $(cat "$disk/said")"

refuses snapshot
refuses snapshot --dir "$disk/nowhere"
refuses snapshot --dir "$disk" --only speed
refuses latency --dir "$disk"
refuses latency --threads 2
refuses latency --workers 1000
refuses latency --timeline x
refuses fabric --path carrier-pigeon
refuses fabric --chunk 4194305
refuses fabric --chunk 3
refuses step --tier peer --global-batch 4
refuses step --tier process --endpoint localhost:1
refuses recover --tier paper
refuses recover --tier log --planned
refuses recover --endpoint localhost:1
refuses recover --tier peer --shards 40
refuses step --path carrier-pigeon
refuses step --tensors 100000
refuses step --read aloud
refuses step --backward -1
refuses step --global-batch 4 --read map
refuses update --shards 2
refuses map --path carrier-pigeon
refuses map --workers 2
refuses update --only sums
refuses update --only copy
refuses update --backend cuda --device "0 1"
refuses step --device 0
refuses step --backend cuda --endpoint localhost:1
refuses update --backend tpu
refuses update --device 0
refuses layout --backend host
refuses update --wire f16
refuses update --params 900T
refuses layout --threads 2
refuses layout --tensors 0
refuses layout --params 12Q
