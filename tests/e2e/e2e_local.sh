#!/bin/bash
# cairn local: the command has a cluster and its own exit status, signals reach it, a daemon that dies is said,
# and however it ends, no process and no folder of it is left.
# usage: e2e_local.sh FOLDER_OF_THE_PROGRAMS
set -euo pipefail
bin=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/run"
fail() { echo "FAILED: $*"; cat "$tmp"/log 2>/dev/null; exit 1; }

# Background programs of a shell without job control begin with SIGINT ignored; env takes that back.
cairn_local() { TMPDIR=$tmp/run MARK=$tmp/run exec env --default-signal=INT "$bin/cairn" local "$@"; }

# Programs that have the folder on their command line or in their environment; not this grep itself.
left() { grep -lsE "$tmp/[r]un" /proc/[0-9]*/cmdline /proc/[0-9]*/environ || true; }

# is_over WHAT EXPECTED_STATUS STATUS
is_over() {
    local deadline=$((SECONDS + 10))
    [ "$3" -eq "$2" ] || fail "$1: exit status $3, not $2"
    while [ -n "$(left)" ]; do
        [ "$SECONDS" -lt "$deadline" ] || fail "$1: these are left: $(left)"
        sleep 0.05
    done
    [ -z "$(ls -A "$tmp/run")" ] || fail "$1: left in TMPDIR: $(ls "$tmp/run")"
}

# until_there FILE: it has something in it.
until_there() {
    local deadline=$((SECONDS + 20))
    until [ -s "$1" ]; do
        kill -0 "$local" 2>/dev/null || fail "it ended before $1 was there"
        [ "$SECONDS" -lt "$deadline" ] || fail "$1 is not there"
        sleep 0.02
    done
}

says() { grep -qF -- "$1" "$tmp/log" || fail "it did not say: $1"; }

# run STATUS ARGUMENTS...: to its end.
run() {
    local status=0 expected=$1
    shift
    (cairn_local "$@") >"$tmp/log" 2>&1 || status=$?
    is_over "cairn local $*" "$expected" "$status"
}

# begin ARGUMENTS...: in the background; sets `local`.
begin() {
    rm -f "$tmp/up" "$tmp/pid"
    (cairn_local "$@") >"$tmp/log" 2>&1 &
    local=$!
    while kill -0 "$local" 2>/dev/null && [ "$(cat "/proc/$local/comm" 2>/dev/null)" != cairn ]; do :; done
}
# end STATUS WHAT
end() {
    local status=0
    wait "$local" || status=$?
    is_over "$2" "$1" "$status"
}
# keeper_pid, shard_pid: of shard-1, by its configuration in the folder that is there.
keeper_pid() { pgrep -P "$local" -f 'cairn-shard --keep --config shard-1.conf'; }
shard_pid() { pgrep -P "$(keeper_pid)" -f 'cairn-shard --config shard-1.conf'; }
# until_again PID TIMES: shard-1 is another process, and has said so many times that it is ready.
until_again() {
    local deadline=$((SECONDS + 20))
    until shard_pid >/dev/null && [ "$(shard_pid)" != "$1" ] &&
        [ "$(cat "$tmp"/run/cairn-local.*/shard-1.log | grep -c 'msg=ready')" -ge "$2" ]; do
        [ "$SECONDS" -lt "$deadline" ] || fail "shard-1 was not started again"
        sleep 0.02
    done
}

# shellcheck disable=SC2016 # for the command's shell
{
    run 7 --shards 2 -- sh -c '"$0" cluster status --no-headers && exit 7' "$bin/cairn"
    [ "$(grep -cE '^shard-[12] +shard +up ' "$tmp/log")" -eq 2 ] || fail "two shards were not up"
    says "a coordinator and 2 shards are up"
    run 0 -q sh -c 'test "$CAIRN_FABRIC_DEVICE" = lo && test -e "$CAIRN_LIBRARY" && test $# = 2' sh --shards -x
    [ ! -s "$tmp/log" ] || fail "not quiet"
    run 137 -- sh -c 'kill -KILL $$'
    run 127 -- "$tmp/nosuch"
    says "$tmp/nosuch"
    run 127 nosuchcommand
    run 2 --shards none
    run 1 --import "$tmp/nosuch" true
    says "--import $tmp/nosuch"
    run 0 --import "$tmp" sh -c 'grep -qx "folders = $0" "$TMPDIR"/cairn-local.*/shard-1.conf' "$tmp"
    run 1 --keep "$tmp/nosuch/folder" true
    says "$tmp/nosuch/folder"
    mkdir "$tmp/alone" && cp "$bin/cairn" "$tmp/alone" # without the daemons
    (bin=$tmp/alone PATH=/usr/bin:/bin run 4 true)
    says "there is no cairn-coordinator beside this program and none in PATH"
}

# A signal is for the command: what it makes of it is the exit status.
# shellcheck disable=SC2016
begin sh -c 'trap "exit 9" TERM; echo up >"$0"; while :; do sleep 0.1; done' "$tmp/up"
until_there "$tmp/up"
kill -TERM "$local"
end 9 "SIGTERM, which the command takes"
# shellcheck disable=SC2016
begin sh -c 'echo up >"$0"; exec sleep 60' "$tmp/up"
until_there "$tmp/up"
kill -INT "$local"
end 130 "SIGINT, which the command dies of"

# Ctrl-C of a terminal reaches the command once, not a second time through cairn local; and no daemon.
cat >"$tmp/terminal.py" <<'END'
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
said = b""
while b"ready" not in said:
    said += os.read(terminal, 4096)
os.write(terminal, b"\x03")
try:
    while text := os.read(terminal, 4096):
        said += text
except OSError:
    pass  # the terminal is gone with its last program
sys.stdout.buffer.write(said)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
END
# shellcheck disable=SC2016
script='trap "echo caught" INT; echo ready; sleep 0.3; sleep 0.3; sleep 0.3; "$0" cluster status && exit 6'
status=0
TMPDIR=$tmp/run MARK=$tmp/run timeout 20 python3 "$tmp/terminal.py" "$bin/cairn" local -q -- \
    bash -c "$script" "$bin/cairn" >"$tmp/log" || status=$?
is_over "Ctrl-C" 6 "$status"
[ "$(grep -c caught "$tmp/log")" -eq 1 ] || fail "the command heard Ctrl-C $(grep -c caught "$tmp/log") times"

# A shard that dies is started again, as often as it dies; the command goes on. A keeper that dies is said, with the end
# of its log; its shard lives on.
# shellcheck disable=SC2016
begin sh -c 'echo up >"$0"; until test -e "$1"; do sleep 0.05; done; exit 3' "$tmp/up" "$tmp/go"
until_there "$tmp/up"
times=1
for death in KILL SEGV; do
    shard=$(shard_pid)
    kill -"$death" "$shard"
    until_again "$shard" $((times += 1))
done
[ "$(grep -c ended "$tmp/log")" -eq 0 ] || fail "a shard that was started again was said to have ended"
shard=$(shard_pid)
kill -KILL "$(keeper_pid)"
deadline=$((SECONDS + 10))
until grep -q 'shard-1 was killed by signal 9' "$tmp/log"; do
    [ "$SECONDS" -lt "$deadline" ] || fail "the death of shard-1 was not said"
    sleep 0.02
done
kill -0 "$shard" || fail "shard-1 died with its keeper"
touch "$tmp/go"
end 3 "a keeper was killed"
grep -qE '^ +ts=.* msg=ready' "$tmp/log" || fail "the end of its log was not shown"

# A process that the command leaves behind becomes a child of cairn local, which reaps it.
# shellcheck disable=SC2016
run 5 -- sh -c '(sleep 0.1 & echo $! >"$0"); for i in $(seq 400); do
    test -e "/proc/$(cat "$0")" || exit 5; sleep 0.02; done' "$tmp/orphan"

# Without a command it is there until a signal, and says where.
begin --endpoint-file "$tmp/up"
until_there "$tmp/up"
"$bin/cairn" --endpoint "$(cat "$tmp/up")" cluster status >/dev/null || fail "no cluster at the endpoint of the file"
kill -INT "$local"
end 0 "SIGINT without a command"
[ ! -e "$tmp/up" ] || fail "the endpoint file stays"
begin --endpoint-file "$tmp/up"
until_there "$tmp/up"
kill -KILL "$(keeper_pid)"
end 1 "a keeper was killed, and there is no command"

# In the middle of its start, too.
for wait in 0 0.01 0.02 0.04 0.08; do
    begin --shards 3 sleep 60
    sleep "$wait" # any moment will do
    kill -TERM "$local"
    end 143 "SIGTERM after $wait s"
done

# SIGKILL, which nobody sees: the children die with it, the folder stays.
# shellcheck disable=SC2016
begin sh -c 'echo up >"$0"; exec sleep 60' "$tmp/up"
until_there "$tmp/up"
kill -KILL "$local"
wait "$local" 2>/dev/null || true
rm -rf "$tmp/run"/cairn-local.*
is_over "SIGKILL" 0 0

# A folder that is kept is used again.
run 0 --keep "$tmp/kept" -- true
[ -s "$tmp/kept/shard-1.log" ] || fail "the folder was not kept"
[ "$(stat -c %a "$tmp/kept")" = 700 ] || fail "the folder is open to others"
run 0 --keep "$tmp/kept" -- true
# One whose name no socket's address can hold, nor a line of a configuration: the socket is elsewhere.
# shellcheck disable=SC2016
run 0 --keep "$tmp/kept; $(printf %0100d 0)" -- sh -c '"$0" cluster status && echo "$CAIRN_ENDPOINT" >"$1"' \
    "$bin/cairn" "$tmp/endpoint"
[ ! -e "$(dirname "$(cat "$tmp/endpoint")")" ] || fail "the folder of the socket stays: $(cat "$tmp/endpoint")"
echo "exit statuses, signals, deaths: nothing is left"
