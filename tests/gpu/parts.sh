# shellcheck shell=bash
# The parts of tests/gpu/run, a function each: part_NAME. It runs in a process of its own, with a folder $run that goes
# when it ends. Figures are lines that begin with "note: ". What the machine lacks is a `skip`; what a build or bundle
# lacks is a failure.
# shellcheck disable=SC2154,SC2034 # what is not assigned, or not used, here: tests/gpu/run does it

# NAME|SECONDS|IN A BOUNDED RUN|WHAT (* is run only by its name), in the order in which they run, what tells most first;
# tests/gpu/run reads it.
part_table="card|60|60|the machine: card, driver, torch; what the shard says of them
kernels|590|120|every kernel on the card against the host's: bits equal, past 2^31 elements where memory allows
data|400|100|device memory of workers, pushed, fetched and mapped on the card: the same bits, nothing passes the host
update|580|200|cairn bench update on the card: 100 M and 1 G parameters, beside a copy there (the aim: 0.90)
step|590|120|cairn bench step on the card, 1 G parameters: 1 and 2 workers
today|500|60|the same work by torch alone: fused AdamW, and all that a trainer does today
ncu|400|120|bytes a parameter that the main kernels move, by the card's counters
bits|400|150|whole clusters with shards on the card: the golden content root
park|300|60|device memory of a job to the host and back: the card's memory as before, the same bits
offload|400|60|a part of the state on the host, 0, 0.5 and 1 of it: the same bits
moves|500|120|state that comes to the card and goes off it while it trains, there, on the host, on both: the same bits
fsdp2|590|200|a transformer of 1 G: one rank of FSDP2 against one worker and a shard on the card (the aim: 1.05)
quickstart|400|200|Fashion-MNIST with kills, a snapshot, three shards and five: the content roots of the host
gpt|590|200|examples/gpt.py with torch on the card: the same bits with state there and on the host, in each stage
faults|500|200|workers and shards killed and started again, tiles, restarts: the tests of the host, on the card
snapshots|400|120|1, 2 and 4 shards on the card; a snapshot of the card restored on the host, and back
sanitizer|590|200|the same as kernels, small, under compute-sanitizer: memcheck and racecheck
tenants|400|200|* an illegal access by a trainer, and by a shard: the other goes on; starts an MPS daemon, too"

# The test programs that parts run; deploy/bundle takes them.
tests_of_kernels=(test_home test_home_large)
tests_of_bits=(test_bits test_bits_faults test_bits_state)
tests_of_faults=(test_restart test_resume test_shard_loss test_tiles_matrix test_tiles_calls test_tiles_faults
    test_write test_amend test_nonfinite test_lease test_drop test_mapped)
tests_of_moves=(test_shard_move test_reshard_reads)
tests_of_data=(test_device_push test_device_read)
tests_of_offload=(test_bits_offload)
tests_of_park=(test_bits_park)
# In their place where the card is emulated: CTest runs the others there, one by one.
few_of_kernels=(test_home_large)
few_of_bits=(test_bits_state)
few_of_faults=(test_lease test_drop)
few_of_moves=(test_reshard_reads)
few_of_data=(test_device_read)
few_of_offload=("${tests_of_offload[@]}")
few_of_park=("${tests_of_park[@]}")
test_programs=("${tests_of_kernels[@]}" "${tests_of_bits[@]}" "${tests_of_faults[@]}" "${tests_of_data[@]}"
    "${tests_of_moves[@]}" "${tests_of_offload[@]}" "${tests_of_park[@]}" test_elastic libillegal.so)

note() { echo "note: $*"; }
on_wait() { :; }
skip() { echo "skip: $*"; exit 77; }

# ---- what there is ----

# Sets what a shard is told to work on the card, or on the host: KEY=VALUE.
on_card() {
    local key
    key=$("$bin/cairn-shard" --print-config | awk -F'[][ =#]+' '
        /^\[/ { section = $2 }
        /^#? *backend *=/ && !seen++ { print section ".backend" }') # to its end: whoever prints would be stopped
    [ -n "$key" ] || fail "cairn-shard --print-config has no key for a shard's backend"
    card_setting=$key=cuda host_setting=$key=host
    has_home
}

# What is in the way of a card, if anything is, as a sentence at once.
has_home() {
    local said
    said=$("$bin/cairn" bench update --backend cuda --params 1 --seconds 0.001 2>&1) ||
        fail "no home on the card: $said"
}

# shards_are_on_card: of the cluster at $endpoint; a shard that fell back to the host would show nothing.
shards_are_on_card() {
    local said
    said=$("$bin/cairn" cluster status)
    [[ $said == *"(cuda, "* ]] || fail "cairn cluster status says nothing of cuda"
    grep -E "^[^ ]+: ([0-9]+ launches, |warning: )" <<<"$said" | sed 's/^/note: /' || true # of the last heartbeat
}

has_torch_on_card() {
    python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null ||
        skip "torch with CUDA is not here"
}

# said_of PATTERN FILE...: the sentence of the first line of a daemon's log that has it; what follows are fields.
said_of() { grep -hm1 "$1" "${@:2}" | sed -nE 's/.* msg="(([^"\\]|\\.)*)".*/\1/p'; }

# run_tests_of PART: its programs, or those few.
run_tests_of() {
    local -n all=tests_of_$1 few=few_of_$1
    if [ -n "${CAIRN_TEST_EMULATED:-}" ]; then run_tests "${few[@]}"; else run_tests "${all[@]}"; fi
}

# run_tests PROGRAM...: all of them, whichever fail.
run_tests() {
    local program status bad=0
    for program in "$@"; do
        status=0
        "$tests/$program" || status=$? # 127: it is not built
        [ "$status" -eq 0 ] || [ "$status" -eq 77 ] || { echo "FAILED: $program: $status"; bad=1; }
        [ "$status" -ne 77 ] || note "$program skipped itself"
    done
    return "$bad"
}

# ---- the parts ----

part_card() {
    local line
    if command -v nvidia-smi >/dev/null; then
        nvidia-smi --query-gpu=name,driver_version,memory.total,uuid --format=csv,noheader |
            while read -r line; do note "$line"; done
    fi
    note "$(uname -sr), $(nproc) cores, $(ldd --version 2>/dev/null | head -n 1)"
    note "$(python3 -c 'import torch; print("torch", torch.__version__, "CUDA", torch.version.cuda)' 2>/dev/null ||
        echo no torch)"
    note "$("$bin/cairn-shard" --version)"
    on_card
    shard_settings=(--set "$card_setting")
    cluster_start 1 "$run/one"
    shards_are_on_card
    note "$(said_of 'state lies' "$run/shard-1.log")"
    cluster_stop
}

part_kernels() {
    [ -n "${CAIRN_TEST_EMULATED:-}" ] || export CAIRN_TEST_LONG=1
    run_tests_of kernels
}

part_sanitizer() {
    local sanitizer tool
    [ -x "$tests/test_home" ] || fail "$tests/test_home is not built"
    sanitizer=$(command -v compute-sanitizer || compgen -G '/usr/local/cuda*/bin/compute-sanitizer' | head -n 1) ||
        skip "compute-sanitizer is not here"
    for tool in memcheck racecheck; do
        CK_FORK=no "$sanitizer" --tool "$tool" --report-api-errors no --error-exitcode 9 "$tests/test_home" ||
            fail "$tool: exit status $?"
        note "$tool: clean"
    done
}

tests_on_card() {
    on_card
    CAIRN_TEST_BACKEND=cuda CAIRN_TEST_DAEMONS=$bin run_tests_of "$1"
}
part_bits() { tests_on_card bits; }
part_faults() { tests_on_card faults; }
part_offload() { tests_on_card offload; }
part_park() { tests_on_card park; }
part_data() { tests_on_card data; }
part_moves() {
    tests_on_card moves
    [ -n "${CAIRN_TEST_EMULATED:-}" ] || CAIRN_TEST_BACKENDS=hcc CAIRN_TEST_DAEMONS=$bin run_tests test_elastic
}

part_quickstart() {
    local where
    [ -e "$data" ] || skip "Fashion-MNIST is not here: apt install dataset-fashion-mnist"
    on_card
    "$root/deploy/quickstart" --bin "$bin" --data "$data" --set "$card_setting" | tee "$run/card"
    "$root/deploy/quickstart" --bin "$bin" --data "$data" --set "$host_setting" | tee "$run/host"
    for where in card host; do
        note "$where: $(grep '^3 ' "$run/$where")"
        note "$where: $(grep '^5 ' "$run/$where")"
        sed -nE 's/^content root, step 600, 3 shards +(.*)/\1/p' "$run/$where" >"$run/$where.root"
    done
    [ -s "$run/card.root" ] || fail "no content root was printed"
    cmp "$run/card.root" "$run/host.root" || fail "the content roots of card and host differ"
    note "content root of both: $(cat "$run/card.root")"
}

# train SHARDS FOLDER STEPS SETTING: a cluster of so many, with the state of snapshot $path if there is one, trains two
# workers to the step. Sets `path` to a snapshot of it and `root_now` to its content root.
train() {
    local rank snapshot
    shard_settings=(--set "$4")
    cluster_start "$1" "$2"
    [ "$4" != "$card_setting" ] || shards_are_on_card
    [ -z "${path:-}" ] || cairn snapshot restore --path "$path" --allow-untrusted >/dev/null
    for rank in 0 1; do
        process_start "worker-$rank" "$bin/fashion_mnist" --endpoint "$endpoint" --rank "$rank" --workers 2 \
            --steps "$3" --data "$data"
    done
    wait_for_end 120 worker-0 worker-1
    snapshot=$(cairn snapshot create fashion-mnist --wait -o json)
    path=$(json_field path <<<"$snapshot")
    root_now=$(cairn job digest fashion-mnist -o json | json_field content_root)
    cluster_stop
    note "step $3 on $1 shards, $4: content root $root_now"
}

part_snapshots() {
    local expected
    [ -e "$data" ] || skip "Fashion-MNIST is not here: apt install dataset-fashion-mnist"
    on_card
    train 3 "$run/host" 120 "$host_setting"
    expected=$root_now
    path=
    train 1 "$run/a" 30 "$card_setting"
    train 3 "$run/b" 60 "$host_setting"
    train 2 "$run/c" 90 "$card_setting"
    train 4 "$run/d" 120 "$card_setting"
    [ "$root_now" = "$expected" ] || fail "content root $root_now, on the host $expected"
}

# gpt_on SETTING STAGE: two trainers on the card come to step 60; sets `root_now` to the job's content root. Torch adds
# in the same order in every run, so that all of them give the same contributions.
gpt_on() {
    local rank
    shard_settings=(--set "$1")
    cluster_start 2 "$run/gpt-$2-${1##*=}"
    [ "$1" != "$card_setting" ] || shards_are_on_card
    for rank in 0 1; do
        rm -f "$run/worker-$rank.log"
        WORLD_SIZE=2 RANK=$rank PYTHONPATH=$python CUBLAS_WORKSPACE_CONFIG=:4096:8 process_start "worker-$rank" \
            python3 -c 'import runpy, sys, torch
torch.use_deterministic_algorithms(True)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")' \
            "$examples/gpt.py" --device cuda --text "$text" --steps 60 --stage "$2"
    done
    wait_for_end 120 worker-0 worker-1
    root_now=$(cairn job digest gpt -o json | json_field content_root)
    note "stage $2, $1: $(grep '^done step 60 ' "$run/worker-0.log"), content root $root_now"
    ! grep -h "go through the host" "$run"/worker-*.log || fail "the library does not work on torch's card"
    cluster_stop
}

part_gpt() {
    local stage expected
    has_torch_on_card
    on_card
    gpt_on "$host_setting" 2
    expected=$root_now
    for stage in 2 1 3; do
        gpt_on "$card_setting" "$stage"
        [ "$root_now" = "$expected" ] || fail "stage $stage on the card: content root $root_now, on the host $expected"
    done
}
