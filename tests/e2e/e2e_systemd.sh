#!/bin/bash
# The units under a real systemd, while a job trains: a shard that dies, is restarted, is exchanged for another build,
# or sees systemd itself start anew goes on with what systemd's descriptor store has, and the bits are those of the
# undisturbed run; what is stopped ends in time.
#
# systemd is process 1 of namespaces of its own: processes, mounts, cgroups, IPC, network. Its root is this host's file
# system, read only, below a memory file system that takes all changes; nothing of the host is changed, and what is
# mounted is gone with the mount namespace. It needs root and no network. Where that is not allowed, the test says why,
# and is skipped.
#
# usage: e2e_systemd.sh FOLDER_OF_THE_PROGRAMS
#   CAIRN_TEST_ROOT=FOLDER       a Debian of debootstrap, with systemd and what the programs load: for another systemd
#   CAIRN_TEST_PREVIOUS=FOLDER   programs of a former build, from which the shard is upgraded. Else it is this build's
#                                program under another version
set -euo pipefail
stage='test'
case ${1:-} in --*) stage=$1 && shift ;; esac
bin=$1
tmp=${2:-}
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
data=/usr/share/datasets/fashion-mnist
self=$source/tests/e2e/e2e_systemd.sh
skip() { echo "skip: no systemd of its own: $*"; exit 77; }
fail() {
    echo "FAILED: $*"
    tail -n 5 "$tmp/trainer.log" 2>/dev/null || true
    in_it journalctl --no-pager -o cat -n 60 2>/dev/null || true
    exit 1
}

# ==== process 1 ====

# In the new namespaces; becomes systemd.
if [ "$stage" = --process-1 ]; then
    cd "$tmp/top"
    mount -t proc proc proc
    mount --bind proc/sys proc/sys && mount -o remount,bind,ro proc/sys # it is the host's kernel
    mount -t sysfs -o ro sysfs sys
    mount -t cgroup2 cgroup2 sys/fs/cgroup
    mount -t tmpfs -o mode=0755 tmpfs run
    mount -t tmpfs -o mode=1777 tmpfs tmp
    pivot_root . old
    umount -l /old
    ip link set lo up 2>/dev/null || true
    container=cairn-test exec /lib/systemd/systemd --system --unit=cairn-test.target \
        --log-target=journal --show-status=0 </dev/null >/dev/null 2>&1
fi

# ==== the folder ====

# The root that systemd gets: the host's files, and above them what this test adds.
make_root() {
    local unit device mask
    mount -t tmpfs -o mode=0755 tmpfs "$tmp"
    mkdir "$tmp"/{upper,between,top}
    mount -t overlay overlay -o "lowerdir=${CAIRN_TEST_ROOT:-/},upperdir=$tmp/upper,workdir=$tmp/between" \
        "$tmp/top" 2>/dev/null || skip "an overlay over / cannot be mounted here"
    cd "$tmp/top"
    mount -t tmpfs -o mode=0755 tmpfs dev
    for device in null zero full random urandom tty; do
        touch "dev/$device"
        mount --bind "/dev/$device" "dev/$device"
    done
    mkdir dev/shm dev/pts old
    ln -s pts/ptmx dev/ptmx
    mount -t tmpfs -o mode=1777 tmpfs dev/shm
    mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts

    # No service of this host, and nothing that would change its kernel.
    rm -rf etc/systemd/system
    mkdir -p etc/systemd/system opt/cairn/bin opt/cairn/lib etc/cairn var/lib/cairn "${data#/}"
    for mask in systemd-sysctl systemd-modules-load systemd-udevd systemd-udev-trigger systemd-remount-fs \
        systemd-random-seed systemd-update-utmp systemd-hwdb-update systemd-firstboot systemd-journal-flush \
        systemd-boot-system-token systemd-binfmt ldconfig apparmor; do
        ln -s /dev/null "etc/systemd/system/$mask.service"
    done
    for mask in dev-hugepages dev-mqueue sys-kernel-debug sys-kernel-tracing sys-kernel-config \
        sys-fs-fuse-connections proc-sys-fs-binfmt_misc tmp; do
        ln -s /dev/null "etc/systemd/system/$mask.mount"
    done
    : >etc/fstab
    : >etc/machine-id
    printf '[Unit]\nRequires=basic.target\nAfter=basic.target\nAllowIsolate=yes\n' >etc/systemd/system/cairn-test.target

    # The installation, and the user.
    cp "$bin"/cairn* "$bin/fashion_mnist" opt/cairn/bin/
    cp -a "$(dirname "$bin")"/lib/libcairn.so* opt/cairn/lib/
    [ -z "${CAIRN_TEST_ROOT:-}" ] || cp "$data"/* "${data#/}"
    for unit in cairn-coordinator.service cairn-shard@.service; do
        sed 's|@CMAKE_INSTALL_FULL_BINDIR@|/opt/cairn/bin|' "$source/deploy/systemd/$unit.in" \
            >"etc/systemd/system/$unit"
    done
    grep -q '^cairn:' etc/passwd || {
        echo 'cairn:x:738:738::/var/lib/cairn:/usr/sbin/nologin' >>etc/passwd
        echo 'cairn:x:738:' >>etc/group
    }
    printf '[cluster]\nshards = 2\n' >etc/cairn/coordinator.conf
    printf '[memory]\nlimit = 256MiB\n' >etc/cairn/shard.conf
    previous_shard
}

# The program that is upgraded: of a former build, or this one's under a version that differs by a letter.
previous_shard() {
    if [ -n "${CAIRN_TEST_PREVIOUS:-}" ]; then
        cp "$CAIRN_TEST_PREVIOUS/cairn-shard" opt/cairn/bin/cairn-shard.previous
        return
    fi
    python3 - opt/cairn/bin/cairn-shard <<'PYTHON'
import re, sys
program = open(sys.argv[1], 'rb').read()
other, count = re.subn(rb'(?<=0\.1\.0)\+(?=[\w.+-]*\0)', b'-', program)
if count == 0:  # it was built without git
    other, count = re.subn(rb'0\.1\.0(?=\0)', b'0.0.9', program)
assert count > 0, 'no version is in the program'
open(sys.argv[1] + '.previous', 'wb').write(other)
PYTHON
    chmod 755 opt/cairn/bin/cairn-shard.previous
}

# ==== the test ====

in_it() { nsenter --target "$process_1" --all "$@"; }
cairn() { in_it env HOME=/tmp /opt/cairn/bin/cairn "$@"; }
property() { in_it systemctl show --value -p "$2" "$1"; }

# until SECONDS WHAT COMMAND...: the command succeeds in time.
until_it() {
    local deadline=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$deadline" ] || fail "$what: not in time"
        sleep 0.05
    done
}

step_of() { cairn job show j -o json | sed -nE 's/^ *"step": ([0-9]+),?$/\1/p'; }
is_beyond() { [ "$(step_of)" -gt "$1" ]; }
# The job trains on, and nothing of it was lost meanwhile: it is in the generation of its beginning.
goes_on() {
    local from
    from=$(step_of)
    until_it 30 "$1: the next steps" is_beyond $((from + 3))
    [ "$(cairn job show j -o json | sed -nE 's/^ *"generation": ([0-9]+),?$/\1/p')" = 1 ] || fail "$1: it was restored"
    [ "$from" -ge "$reached" ] || fail "$1: step $from, though $reached had been reached"
    reached=$(step_of)
}
has_stored() { [ "$(property "$1" NFileDescriptorStore)" -gt 0 ]; }
is_another() { [ "$(property "$1" MainPID)" != "$2" ] && [ "$(property "$1" MainPID)" != 0 ]; }

# trains STEPS: in the background.
trains() {
    in_it env CAIRN_ENDPOINT=/run/cairn/coordinator.sock LD_LIBRARY_PATH=/opt/cairn/lib \
        /opt/cairn/bin/fashion_mnist --job j --steps "$1" >"$tmp/trainer.log" 2>&1 &
    trainer=$!
}

crash() { # at any moment of a step
    local process
    process=$(property cairn-shard@0 MainPID)
    in_it kill -KILL "$process"
    until_it 10 "a crash: the next process" is_another cairn-shard@0 "$process"
    goes_on "a crash"
    [ "$(property cairn-shard@0 NRestarts)" -ge 1 ] || fail "systemd did not start the shard again"
}

restart() {
    local process
    process=$(property cairn-shard@1 MainPID)
    in_it systemctl restart cairn-shard@1 || fail "systemctl restart"
    is_another cairn-shard@1 "$process" || fail "a restart left the process"
    goes_on "systemctl restart"
}

upgrade() {
    local top=$tmp/top/opt/cairn/bin before
    before=$(cairn cluster status | grep -c "$previous") || fail "no shard is of the former build"
    cp "$top/cairn-shard.now" "$top/cairn-shard.part"
    mv "$top/cairn-shard.part" "$top/cairn-shard"
    in_it systemctl restart cairn-shard@0 cairn-shard@1 || fail "systemctl restart for an upgrade"
    goes_on "an upgrade"
    ! cairn cluster status | grep "$previous" || fail "a shard is still of the former build ($before were)"
}

reexec() { # systemd itself starts anew, with its store; then a crash
    in_it systemctl daemon-reexec
    crash
}

# What is trained further without any fault has the bits of a cluster without any.
has_its_bits() {
    local steps root other
    kill -KILL "$trainer" 2>/dev/null || true
    in_it pkill -KILL fashion_mnist || true
    wait "$trainer" 2>/dev/null || true
    steps=$(($(step_of) + 20))
    trains "$steps"
    wait "$trainer" || fail "the trainer: $(tail -n 3 "$tmp/trainer.log")"
    root=$(cairn job digest j -q) || fail "no digest"
    other=$(TMPDIR=$tmp "$bin/cairn" local --shards 1 -q -- \
        sh -c "'$bin/fashion_mnist' --job j --steps $steps >/dev/null && '$bin/cairn' job digest j -q") ||
        fail "the undisturbed cluster"
    [ "$root" = "$other" ] || fail "at step $steps the root is $root, not $other"
    echo "the same root at step $steps: $root"
}

# stops: in time, and what becomes of the state.
stops() {
    local begin=$SECONDS version
    version=$(in_it systemctl --version | sed -nE '1s/systemd ([0-9]+).*/\1/p')
    if [ "$version" -ge 254 ]; then
        in_it mkdir -p /etc/systemd/system/cairn-shard@.service.d
        printf '[Service]\nFileDescriptorStorePreserve=yes\n' |
            in_it tee /etc/systemd/system/cairn-shard@.service.d/preserve.conf >/dev/null
        in_it systemctl daemon-reload
    fi
    in_it systemctl stop cairn-shard@1
    [ $((SECONDS - begin)) -le 10 ] || fail "systemctl stop took $((SECONDS - begin)) s"
    [ "$(property cairn-shard@1 Result)" = success ] || fail "a stop ended with $(property cairn-shard@1 Result)"
    if [ "$version" -ge 254 ]; then
        has_stored cairn-shard@1 || fail "FileDescriptorStorePreserve= kept nothing through a stop"
        in_it systemctl start cairn-shard@1
        trains 1000000
        goes_on "a stop and a start with FileDescriptorStorePreserve=yes"
    else # the store is empty, so the part is lost, and that is said
        ! has_stored cairn-shard@1 || fail "systemd $version keeps descriptors through a stop"
        in_it systemctl start cairn-shard@1
        until_it 20 "the part that was let go of is lost" is_lost
    fi
    in_it systemctl stop cairn-shard@0 cairn-shard@1 cairn-coordinator
    [ $((SECONDS - begin)) -le 30 ] || fail "stopping all took $((SECONDS - begin)) s"
}
is_lost() { cairn job list --no-headers | grep -q lost; }

# Nothing that the units forbid was needed.
is_content() {
    local said
    said=$(in_it journalctl --no-pager -o cat -u cairn-coordinator -u 'cairn-shard@*' |
        grep -E 'level=error|SIGSYS') || true
    [ -z "$said" ] || fail "under the units: $said"
}

run_cases() {
    previous=$("$tmp/top/opt/cairn/bin/cairn-shard.previous" --version | sed -nE '1s/^[^ ]+ ([^ ]+).*/\1/p')
    mv "$tmp/top/opt/cairn/bin/cairn-shard"{,.now}
    mv "$tmp/top/opt/cairn/bin/cairn-shard"{.previous,}
    until_it 30 "systemd's start" in_it systemctl is-active cairn-test.target
    # As `systemctl enable` with the target of a whole system does; a unit that nothing wants is unloaded at its stop.
    in_it systemctl -q add-wants cairn-test.target cairn-coordinator.service cairn-shard@{0,1}.service ||
        fail "the units cannot be enabled"
    in_it systemctl start cairn-coordinator cairn-shard@0 cairn-shard@1 || fail "the units do not start"
    trains 1000000
    until_it 30 "the first steps" is_beyond 3
    reached=0
    until_it 10 "systemd's store" has_stored cairn-shard@0
    until_it 10 "systemd's store" has_stored cairn-shard@1
    crash
    restart
    upgrade
    reexec
    is_content
    has_its_bits
    stops
}

# ==== begin ====

begin() {
    local need
    [ "$(id -u)" = 0 ] || skip "only root may run a systemd of its own"
    for need in unshare nsenter pivot_root python3 systemctl journalctl; do
        command -v "$need" >/dev/null || skip "there is no $need"
    done
    [ -x /lib/systemd/systemd ] || skip "apt install systemd"
    [ -e "$data" ] || skip "apt install dataset-fashion-mnist"
    unshare --mount --pid --fork --cgroup --uts --ipc --net true 2>/dev/null || skip "namespaces are not allowed here"
    tmp=$(mktemp -d)
    trap 'rm -rf --one-file-system "$tmp"' EXIT # what is mounted below it is gone with its namespace
    trap 'exit 130' INT TERM HUP
    unshare --mount --propagation private bash "$self" --in-namespace "$bin" "$tmp"
}

# Ends all processes of the namespaces, and takes their groups away.
end() {
    kill -KILL "$child" 2>/dev/null || true # its child, systemd, dies with it
    wait "$child" 2>/dev/null || true
    for _ in {1..100}; do
        find "$group" -mindepth 1 -depth -type d -exec rmdir {} \; 2>/dev/null || true
        rmdir "$group" 2>/dev/null && return
        sleep 0.05
    done
    echo "$group is left"
}

in_namespace() {
    make_root
    group=$tmp/groups/cairn-test-$$
    mkdir "$tmp/groups"
    mount -t cgroup2 cgroup2 "$tmp/groups" 2>/dev/null || skip "the second version of control groups is not here"
    mkdir "$group" || skip "no control group can be made"
    (
        echo "$BASHPID" >"$group/cgroup.procs"
        exec unshare --pid --fork --kill-child --mount --cgroup --uts --ipc --net bash "$self" --process-1 "$bin" "$tmp"
    ) &
    child=$!
    trap end EXIT
    for _ in {1..100}; do # until it has become systemd
        process_1=
        read -r process_1 _ 2>/dev/null <"/proc/$child/task/$child/children" || true
        [ -n "$process_1" ] && [ "$(cat "/proc/$process_1/comm" 2>/dev/null)" = systemd ] && break
        kill -0 "$child" 2>/dev/null || skip "systemd does not start in namespaces here"
        sleep 0.05
    done
    run_cases
}

case $stage in
    test) begin ;;
    --in-namespace) in_namespace ;;
esac
