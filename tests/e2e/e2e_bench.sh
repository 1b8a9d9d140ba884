#!/bin/bash
# cairn bench: every bench prints what it promises, on a small model, and refuses what it does not take.
# usage: e2e_bench.sh FOLDER_OF_THE_PROGRAMS
set -euo pipefail
cairn=$1/cairn
fail() { echo "FAILED: $*"; exit 1; }

# of NAME ARGUMENTS...: its JSON has the fields, and figures that are above 0.
of() {
    local name=$1 out
    shift
    out=$("$cairn" bench "$@" --seconds 0.01 -o json) || fail "cairn bench $*"
    python3 - "$name" "$out" <<'PYTHON' || fail "cairn bench $*: $out"
import json, sys
name, result = sys.argv[1], json.loads(sys.argv[2])
assert result["bench"] == name and result["schema_version"] == 1
for figure in ("value", "reference", "ratio"):
    low, middle, high = (result[figure + end] for end in ("_min", "", "_max"))
    assert 0 < low <= middle <= high, figure
for word in ("unit", "reference_name"):
    assert isinstance(result[word], str) and result[word], word
for field in ("params", "parts", "machine"):
    assert isinstance(result[field], dict), field
assert result["runs"] >= 5 and result["machine"]["cores"] >= 1
PYTHON
}

# floor FIGURE AT_LEAST ARGUMENTS...: half of what is to be reached, which a machine with other work has left, too.
# The best of three runs at most counts: others may have the cores in one. cpu_ratio is of processor time.
# An update is judged by 16M parameters, 416 MB: what a cache of 32 MB holds is no stream of memory, there
# arithmetic decides, and the ratio is half.
floor() {
    local figure=$1 least=$2 seen="" out
    shift 2
    for _ in 1 2 3; do
        out=$("$cairn" bench "$@" --seconds 0.2 -o json) || fail "cairn bench $*"
        seen+=" $(python3 -c 'import json, sys
result = json.loads(sys.argv[1])
print(result["parts"][sys.argv[2]] if sys.argv[2] in result["parts"] else result[sys.argv[2]])' "$out" "$figure")"
        python3 -c 'import sys; sys.exit(float(sys.argv[1]) < float(sys.argv[2]))' "${seen##* }" "$least" || continue
        echo "note: cairn bench $*: $figure was$seen; $least is wanted"
        return
    done
    fail "cairn bench $*: $figure was$seen, and not once $least"
}

# once WHAT FUNCTION: it goes well. Status 3 says that a time was not as wanted, and only that is tried again:
# others may have had the cores, and what a host takes from its virtual machine is counted as used.
once() {
    local what=$1 status=0
    for _ in 1 2 3; do
        status=0
        "$2" || status=$?
        [ "$status" -eq 3 ] || break
    done
    [ "$status" -eq 0 ] || fail "$what: status $status (3: each time of three)"
}

refuses() {
    local status=0
    "$cairn" bench "$@" >/dev/null 2>&1 || status=$?
    [ "$status" -eq 2 ] || fail "cairn bench $*: exit status $status, not 2"
}

of update update --params 1M --threads 1
of update update --params 1M --threads 2 --wire f32
of update.adamw update --params 1M --only adamw
of update update --params 1M --backend host
of update.fold update --params 300K --only fold
of update.hash update --params 300K --only hash
of latency latency --workers 1 --shards 1
of layout layout --params 1G --shards 10 --tensors 100
floor cpu_ratio 0.45 update --params 16M --threads 1
floor cpu_ratio 0.45 update --params 16M --threads 2
floor cpu_ratio 0.45 update --params 16M --threads 2 --wire f32
! grep -qw avx2 /proc/cpuinfo || floor avx2_ratio 1.5 update --params 1M --only hash
floor ratio_max 0.5 layout # 10,000 shards within a second
"$cairn" bench update --params 300K --seconds 0.01 | grep -q '^ratio' || fail "no ratio in the table"

latency() {
    parts=$("$cairn" bench latency --seconds 0.01 -o json | python3 -c 'import json, sys
parts = json.load(sys.stdin)["parts"]
assert 0 < parts["idle_percent"] and parts["idle_percent_limit"] == 0.5, parts
print(*parts)
if parts["idle_percent"] >= 0.5:
    print("idle_percent:", parts["idle_percent"], file=sys.stderr)
    sys.exit(3)')
}
once "cairn bench latency: daemons are not idle" latency
for part in begin grant reduce decide update result push_to_ack p99; do
    [[ $parts == *$part* ]] || fail "the parts of an empty step are $parts, without $part"
done
of fabric fabric
floor ratio_max 0.45 fabric
of fabric fabric --path mapped --chunk 262144
out=$(PATH=/nonexistent "$cairn" bench fabric --chunk 4194304 --seconds 0.01)
[[ $out == *"raw TCP"* ]] || fail "without ucx_perftest the reference is not raw TCP: $out"
of step step --params 300K --tensors 4 --workers 1 --shards 1 --wire f32
of step step --params 300K --tensors 4 --path mapped --read map
of step step --params 300K --tensors 4 --global-batch 5
of map map --params 300K
of map map --params 300K --shards 3 --wire bf16 --path ucx
trace=$(mktemp)
disk=$(mktemp -d)
trap 'rm -rf "$trace" "$disk"' EXIT
# Without torch, which takes a second to say hello.
echo 'raise ImportError' >"$disk/torch.py"
mkdir "$disk/here"
snapshot() { PYTHONPATH=$disk of "$@" --dir "$disk/here" --params 1M --tensors 4 2>"$disk/said"; }
snapshot snapshot.write snapshot --only write
grep -q '^skip: torch.save' "$disk/said" || fail "that there is no torch is not said: $(cat "$disk/said")"
snapshot snapshot.read snapshot --only read
snapshot snapshot.interval snapshot --only interval
snapshot snapshot.export snapshot --only export
snapshot snapshot.manifest snapshot --only manifest
status=0
PYTHONPATH=$disk timeout -s INT 1 "$cairn" bench snapshot --dir "$disk/here" --params 1M --tensors 4 --only interval \
    2>"$disk/said" || status=$?
[ "$status" -ne 0 ] || fail "an interrupted bench of snapshots says that it is well"
[ -z "$(ls "$disk/here")" ] || fail "the bench of snapshots leaves $(ls "$disk/here")"
timeline() {
    "$cairn" bench step --params 1M --tensors 32 --backward 400 --timeline "$trace" --seconds 0.01 -o json |
        python3 - "$trace" 3<&0 <<'PYTHON'
import json, os, sys
result = json.load(os.fdopen(3))
events = json.load(open(sys.argv[1]))["traceEvents"]
names = {e["name"].split(" w")[0] for e in events if e["ph"] == "X" and e["dur"] >= 0}
missing = {"backward", "cast", "push", "commit", "fetch", "receive", "fold", "sums", "update, publish"} - names
assert not missing, missing
assert {e["args"]["name"] for e in events if e["ph"] == "M"} == {"worker 0", "worker 1", "shard 1", "shard 2"}
parts, params = result["parts"], result["params"]
assert parts["pushed_bytes_a_worker"] == parts["fetched_bytes_a_worker"] == 2 * params["params"], parts
if parts["push_within_backward"] < 0.8:
    print(parts)
    sys.exit(3)
PYTHON
}
once "cairn bench step --timeline" timeline
units() {
    "$cairn" bench step --params 4M --tensors 16 --workers 1 --path ucx --read units --backward 160 \
        --timeline "$trace" --seconds 0.01 -o json | python3 - "$trace" 3<&0 <<'PYTHON'
import json, os, sys
result = json.load(os.fdopen(3))
events = [e for e in json.load(open(sys.argv[1]))["traceEvents"] if e["ph"] == "X" and e["pid"] == 0]
def of(kind): return sorted((e["ts"], e["name"].split(" w")[1]) for e in events if e["name"].startswith(kind + " w"))
units = [f"{i:04}" for i in range(16)]
assert [w for _, w in of("use")] == [w for _, w in of("fetch")] == units + units[::-1], (of("use"), of("fetch"))
# Each but the first of a pass is asked for when the one before is about to be used.
uses = of("use")
assert all(i % 16 == 0 or ts <= uses[i - 1][0] for i, (ts, _) in enumerate(of("fetch"))), events
parts, params = result["parts"], result["params"]
assert parts["fetched_bytes_a_worker"] == 2 * parts["pushed_bytes_a_worker"] == 4 * params["params"], parts
if min(parts["fetch_within_use_of_others"], parts["push_within_backward"]) < 0.8:
    print(parts)
    sys.exit(3)
PYTHON
}
once "cairn bench step --read units" units
[ -z "$(pgrep -P $$ cairn)" ] || fail "a process of the bench is left"

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
