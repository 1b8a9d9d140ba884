# shellcheck shell=bash
# The part `tenants` of tests/gpu/run: several processes on one card, and one of them makes an illegal access
# (illegal/illegal.c). See parts.sh, which has the table and what this uses.
# shellcheck disable=SC2154,SC2034 # what is not assigned, or not used, here: tests/gpu/run does it

# faulty LAUNCH COMMAND...: in the processes that it starts the launch of that number accesses what is not there.
faulty() {
    local driver=${CAIRN_CUDA_DRIVER:-} status=0
    export CAIRN_ILLEGAL_LAUNCH=$1 CAIRN_ILLEGAL_DRIVER=${driver:-libcuda.so.1}
    export CAIRN_CUDA_DRIVER=$tests/libillegal.so
    "${@:2}" || status=$?
    unset CAIRN_ILLEGAL_LAUNCH CAIRN_ILLEGAL_DRIVER CAIRN_CUDA_DRIVER
    [ -z "$driver" ] || export CAIRN_CUDA_DRIVER=$driver
    return "$status"
}

# trainers STEPS: two, of the cluster at $endpoint.
trainers() {
    local rank
    for rank in 0 1; do
        rm -f "$run/worker-$rank.log"
        process_start "worker-$rank" "$bin/fashion_mnist" --endpoint "$endpoint" --rank "$rank" --workers 2 \
            --steps "$1" --data "$data"
    done
}

# ended_well SECONDS NAME...: false if one of them did not, or not within that time.
ended_well() {
    local deadline=$((SECONDS + $1)) name status=0
    shift
    for name in "$@"; do
        while process_is_alive "$name" && [ "$SECONDS" -lt "$deadline" ]; do sleep 0.1; done
        process_is_alive "$name" && process_kill "$name" && status=1 && continue
        process_forget "$name" || status=1
    done
    return "$status"
}

tenant_fails() {
    local said status=0
    said=$(faulty 5 "$bin/cairn" bench update --backend cuda --params 300K --seconds 1 2>&1) || status=$?
    [ "$status" -ne 0 ] || fail "the tenant's illegal access was not noticed"
    note "the tenant: $(tail -n 1 <<<"$said")"
}

# of_trainer: a trainer's fault, while two others train to a step. Gives `root_now`, "" if the state went with it.
of_trainer() {
    cluster_start 2 "$run/$1"
    shards_are_on_card
    trainers 60
    wait_until 60 "step 50" grep -q "^step 50 " "$run/worker-0.log"
    tenant_fails
    root_now=
    ! ended_well 120 worker-0 worker-1 ||
        root_now=$(cairn job digest fashion-mnist -o json | json_field content_root)
}

# of_shard: a shard's fault, with a tenant beside it. The job stops with a sentence; the tenant goes on.
of_shard() {
    local said
    faulty 40 cluster_start 1 "$run/of-shard"
    shards_are_on_card
    process_start tenant "$bin/cairn" bench update --backend cuda --params 300K --seconds 3
    trainers 60
    wait_until_said 60 "$run/shard-1.log" 'ILLEGAL_ADDRESS'
    said=$(said_of 'ILLEGAL_ADDRESS' "$run/shard-1.log")
    [ -n "$said" ] || fail "the shard's log has no sentence of it"
    note "the shard: $said"
    process_kill worker-0 worker-1
    wait_for_end 60 tenant
    note "a tenant beside it ended well"
    process_kill shard-1
    process_stop coordinator
}

# wait_until_said SECONDS FILE PATTERN: processes may end meanwhile.
wait_until_said() {
    local deadline=$((SECONDS + $1))
    until grep -q "$3" "$2"; do
        [ "$SECONDS" -lt "$deadline" ] || fail "$2 did not say $3 within $1 s"
        sleep 0.1
    done
}

# False: its control is not there within 20 s.
mps_begins() {
    local deadline=$((SECONDS + 20))
    until [ -e "$CUDA_MPS_PIPE_DIRECTORY/control" ]; do
        [ "$SECONDS" -lt "$deadline" ] && process_is_alive mps || return 1
        sleep 0.1
    done
}

# The same under MPS, where one client's fault may end all: either nothing is lost, or the job stops with a sentence.
under_mps() {
    local name
    command -v nvidia-cuda-mps-control >/dev/null || { note "no nvidia-cuda-mps-control: MPS was not tried"; return; }
    export CUDA_MPS_PIPE_DIRECTORY=$run/mps CUDA_MPS_LOG_DIRECTORY=$run/mps-log
    mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
    process_start mps nvidia-cuda-mps-control -f
    mps_begins || { note "MPS does not begin here: $(tail -n 1 "$run/mps.log")"; return; }
    of_trainer mps
    if [ -n "$root_now" ]; then
        [ "$root_now" = "$expected" ] || fail "under MPS: content root $root_now, $expected without a fault"
        note "under MPS the trainers went on, with the same bits"
    else
        note "under MPS the fault ended the shards' work, too:"
        note "$(said_of CUDA_ERROR "$run"/shard-*.log)"
    fi
    note "cluster status under MPS: $("$bin/cairn" cluster status | grep -m1 MPS || echo 'says nothing of MPS')"
    for name in worker-0 worker-1 shard-1 shard-2 coordinator; do
        [ -z "${process_id[$name]:-}" ] || process_kill "$name"
    done
    echo quit | nvidia-cuda-mps-control >/dev/null 2>&1 || true # its server, too, which is no process of ours
    process_stop mps || true
}

part_tenants() {
    local expected
    [ -e "$data" ] || skip "Fashion-MNIST is not here: apt install dataset-fashion-mnist"
    [ -e "$tests/libillegal.so" ] || fail "$tests/libillegal.so is not built"
    on_card
    train 2 "$run/expected" 60 "$host_setting"
    expected=$root_now path=
    shard_settings=(--set "$card_setting")
    of_trainer of-trainer
    [ "$root_now" = "$expected" ] || fail "beside a tenant's fault the content root is '$root_now', without $expected"
    note "the trainers went on, with the same bits"
    cluster_stop
    of_shard
    under_mps
}
