# shellcheck shell=bash
# Parts of tests/gpu/run that measure: see parts.sh, which has the table and what they use.
# shellcheck disable=SC2154,SC2034 # what is not assigned, or not used, here: tests/gpu/run does it

# bench ARGUMENTS...: the figures of a bench, as notes; sets `seconds_of_run` to the median of its runs.
# A card without room for so much is no failure: `left_out` says so.
bench() {
    left_out=
    if ! "$bin/cairn" bench "$@" -o json >"$run/bench" 2>"$run/bench.log"; then
        grep -q "what is free of the device" "$run/bench.log" || fail "cairn bench $*"
        left_out=$(cat "$run/bench.log")
        note "left out: $left_out"
        return 0
    fi
    python3 - "$*" "$run/bench" <<'PYTHON'
import json, sys
r = json.load(open(sys.argv[2]))
print(f"note: bench {sys.argv[1]}: {r['value']:.5g} {r['unit']} ({r['value_min']:.5g} to {r['value_max']:.5g}), "
      f"{r['reference_name']} {r['reference']:.5g}, "
      f"ratio {r['ratio']:.3f} ({r['ratio_min']:.3f} to {r['ratio_max']:.3f})")
print("note:   " + ", ".join(f"{k} {v:.5g}" if isinstance(v, float) else f"{k} {v}" for k, v in r["parts"].items()))
PYTHON
    seconds_of_run=$(python3 -c 'import json, sys
r = json.load(open(sys.argv[1]))
print(r["params"]["params"] * r["params"]["bytes_per_param"] / r["value"] * 1e-9 if r["unit"] == "GB/s" else r["value"])
' "$run/bench")
}

# What an emulated card can bear is nothing to measure.
sizes=(100000000 1000000000) seconds=()
[ -z "${CAIRN_TEST_EMULATED:-}" ] || sizes=(300000) seconds=(--seconds 0.01)

part_update() {
    local size part
    has_home
    for size in "${sizes[@]}"; do
        bench update --backend cuda --params "$size" "${seconds[@]}"
        bench update --backend cuda --params "$size" "${seconds[@]}" --wire f32
        for part in adamw zeros fold hash copy; do
            bench update --backend cuda --params "$size" --only "$part" "${seconds[@]}"
        done
    done
}

part_today() {
    local size whole
    has_torch_on_card
    has_home
    for size in "${sizes[@]}"; do
        bench update --backend cuda --params "$size" "${seconds[@]}"
        [ -z "$left_out" ] || continue
        whole=$seconds_of_run
        bench update --backend cuda --params "$size" "${seconds[@]}" --only adamw
        python3 "$here/today.py" --params "$size" --cairn "$whole" --cairn-adamw "$seconds_of_run"
    done
}

# A card whose kernels take more than half of the time, by its own account; true where that cannot be asked.
is_busy() {
    local percent
    percent=$(nvidia-smi --query-gpu=utilization.gpu --format=csv,noheader,nounits 2>/dev/null | head -n 1) || return 0
    [[ ! $percent =~ ^[0-9]+$ ]] || [ "$percent" -gt 50 ]
}

part_step() {
    local workers params=1G
    has_home
    [ -z "${CAIRN_TEST_EMULATED:-}" ] || params=300K
    for workers in 1 2; do
        bench step --backend cuda --params "$params" --workers "$workers" --shards 1 "${seconds[@]}"
        bench step --backend cuda --memory device --params "$params" --workers "$workers" --shards 1 "${seconds[@]}"
    done
    [ -z "${CAIRN_TEST_EMULATED:-}" ] || return 0
    process_start tenant "$bin/cairn" bench update --backend cuda --params 100M --seconds 600
    wait_until 60 "the tenant to begin" is_busy
    note "what taking turns costs: beside a tenant whose kernels follow each other without a pause"
    bench step --backend cuda --params "$params" --workers 1 --shards 1
    process_kill tenant
}

# ways WAY...: each once; what it says is a line of $run/ways.
ways() {
    local way status
    for way in "$@"; do
        status=0
        PYTHONPATH=$python python3 "$here/fsdp2.py" "$way" >"$run/way" || status=$?
        [ "$status" -ne 77 ] || skip "$(sed -n 's/^skip: //p' "$run/way")"
        [ "$status" -eq 0 ] || fail "fsdp2.py $way: exit status $status"
        tail -n 1 "$run/way" >>"$run/ways"
    done
}

# By turns: speeds of a card change with its heat.
part_fsdp2() {
    has_torch_on_card
    on_card
    ways bare fsdp2
    shard_settings=(--set "$card_setting" --set memory.limit=24GiB)
    cluster_start 1 "$run/fsdp2"
    shards_are_on_card
    ways cairn
    cluster_stop
    ways fsdp2
    cluster_start 1 "$run/again"
    ways cairn
    note "$(sed -nE 's/^(VmRSS|VmHWM):\s*/shard: \1 /p' "/proc/${process_id[shard-1]}/status" | paste -sd' ')"
    cluster_stop
    ways bare
    python3 - "$run/ways" <<'PYTHON'
import json, sys
best, all_of = {}, [json.loads(line) for line in open(sys.argv[1])]
for one in all_of:
    print("note:   " + ", ".join(f"{k} {v:.5g}" if isinstance(v, float) else f"{k} {v}" for k, v in one.items()))
    best[one["way"]] = min(one["seconds"], best.get(one["way"], 1e9))
ms = {way: 1e3 * seconds for way, seconds in best.items()}
print(f"note: a step: {ms['cairn']:.1f} ms, FSDP2 {ms['fsdp2']:.1f} ms: ratio {ms['cairn'] / ms['fsdp2']:.3f} "
      f"(the aim: 1.05 or less); not hidden behind the passes ({ms['bare']:.1f} ms): "
      f"{ms['cairn'] - ms['bare']:.1f} ms, FSDP2 {ms['fsdp2'] - ms['bare']:.1f} ms")
PYTHON
}

part_ncu() {
    local ncu part params=100000000
    has_home
    [ -z "${CAIRN_TEST_EMULATED:-}" ] || skip "an emulated card has no counters"
    ncu=$(command -v ncu || compgen -G '/usr/local/cuda*/bin/ncu' | head -n 1) || skip "ncu is not here"
    # Six passes of each, the one included that is not measured; an update is also made to fill the arrays.
    for part in fold:6 adamw:7 hash:6; do
        "$ncu" --target-processes all --clock-control none --csv --page raw \
            --metrics dram__bytes_read.sum,dram__bytes_write.sum,gpu__time_duration.sum \
            "$bin/cairn" bench update --backend cuda --params "$params" --only "${part%:*}" --threads 1 \
            --seconds 0.001 -o json >"$run/ncu" 2>&1 || true
        ! grep -q ERR_NVGPUCTRPERM "$run/ncu" || skip "ncu may not read the card's counters here (ERR_NVGPUCTRPERM)"
        note "--only ${part%:*}"
        python3 "$here/ncu.py" "$params" "${part#*:}" <"$run/ncu" || { tail -n 20 "$run/ncu"; exit 1; }
    done
}
