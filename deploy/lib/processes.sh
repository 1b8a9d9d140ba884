# shellcheck shell=bash
# Background processes that do not outlive the script that started them, and waits that end.
# Sourced by deploy/quickstart and tests/gpu/run. Each process has a name, a log ($run/NAME.log) and dies with the
# script.

declare -A process_id=() # by name

# processes_begin: makes the folder $run; it and every process go when the script exits, however.
processes_begin() {
    run=$(mktemp -d "${TMPDIR:-/tmp}/cairn.XXXXXX")
    trap processes_end EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
}

# process_start NAME COMMAND...: appends what it prints to the log.
process_start() {
    local name=$1
    shift
    setpriv --pdeathsig KILL "$@" >>"$run/$name.log" 2>&1 </dev/null &
    process_id[$name]=$!
}

process_is_alive() { [ -n "${process_id[$1]:-}" ] && kill -0 "${process_id[$1]}" 2>/dev/null; }

# process_forget NAME: it has ended. Gives its exit status.
process_forget() {
    local status=0
    wait "${process_id[$1]}" 2>/dev/null || status=$?
    unset "process_id[$1]"
    return "$status"
}

# process_kill NAME...: SIGKILL, and gone when this returns.
process_kill() {
    local name
    for name in "$@"; do kill -KILL "${process_id[$name]}" 2>/dev/null || true; done
    for name in "$@"; do process_forget "$name" || true; done
}

# process_stop NAME...: SIGTERM; those that have not ended after 10 s are killed, which is a failure.
process_stop() {
    local name deadline=$((SECONDS + 10)) status=0
    for name in "$@"; do kill -TERM "${process_id[$name]}" 2>/dev/null || true; done
    for name in "$@"; do
        while process_is_alive "$name" && [ "$SECONDS" -lt "$deadline" ]; do sleep 0.05; done
        if process_is_alive "$name"; then
            kill -KILL "${process_id[$name]}" 2>/dev/null || true
        fi
        process_forget "$name" || status=1
    done
    return "$status"
}

processes_end() {
    local status=$?
    trap '' INT TERM HUP
    [ "${#process_id[@]}" -eq 0 ] || process_stop "${!process_id[@]}" || true
    rm -rf "$run"
    exit "$status"
}

# Says what is wrong, shows the end of every log, and ends the script.
fail() {
    echo "FAILED: $*" >&2
    local log
    for log in "$run"/*.log; do
        [ -s "$log" ] || continue
        echo "--- the end of ${log##*/}" >&2
        tail -n 15 "$log" >&2
    done
    exit 1
}

# wait_until SECONDS WHAT COMMAND...: until the command succeeds. Fails when the time is over or a
# process ended by itself. `on_wait`, a function of the script, runs in between.
wait_until() {
    local seconds=$1 what=$2 deadline=$((SECONDS + $1)) name
    shift 2
    until "$@"; do
        on_wait
        for name in "${!process_id[@]}"; do
            process_is_alive "$name" || fail "$name ended while this waited for $what"
        done
        [ "$SECONDS" -lt "$deadline" ] || fail "waited $seconds seconds for $what"
        sleep 0.1
    done
}

# wait_for_end SECONDS NAME...: until these have ended with exit status 0.
wait_for_end() {
    local seconds=$1 deadline=$((SECONDS + $1)) name status
    shift
    for name in "$@"; do
        while process_is_alive "$name"; do
            on_wait
            [ "$SECONDS" -lt "$deadline" ] || fail "waited $seconds seconds for $name to end"
            sleep 0.1
        done
        status=0
        process_forget "$name" || status=$?
        [ "$status" -eq 0 ] || fail "$name ended with exit status $status"
    done
    on_wait
}
