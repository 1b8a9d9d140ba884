#!/bin/bash
# cairn bench: what is measured is half of what is to be reached, at least, daemons are idle, and the timeline of a
# step shows what it has to. It runs alone: beside others it would measure them.
# usage: e2e_bench_speed.sh FOLDER_OF_THE_PROGRAMS
set -euo pipefail
. "$(dirname "$0")/bench_said.sh"
trace=$(mktemp)
trap 'rm -f "$trace"' EXIT

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

floor cpu_ratio 0.45 update --params 16M --threads 1
floor cpu_ratio 0.45 update --params 16M --threads 2
floor cpu_ratio 0.45 update --params 16M --threads 2 --wire f32
! grep -qw avx2 /proc/cpuinfo || floor avx2_ratio 1.5 update --params 1M --only hash
floor ratio_max 0.5 layout # 10,000 shards within a second
floor ratio_max 0.45 fabric

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
