#!/bin/bash
# The daemons make no system call that their units refuse, and no memory both writable and executable: what they do in
# whole clusters (start, attach, train, snapshot, restore, drain, end) is traced, and compared with the units' lines.
# usage: e2e_syscalls.sh FOLDER_OF_THE_PROGRAMS
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin=$1
fail() { echo "FAILED: $*"; exit 1; }
for tool in strace systemd-analyze; do
    command -v "$tool" >/dev/null || { echo "skip: $tool is not installed"; exit 77; }
done
strace -o /dev/null true 2>/dev/null || { echo "skip: strace may trace no process here"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# What the unit's environment sets is set here, too. -D: the daemon keeps its number, and the signals that it gets.
mkdir "$tmp/bin"
ln -s "$bin/cairn" "$tmp/bin/cairn"
for daemon in cairn-coordinator cairn-shard; do
    unit=$(echo "$root/deploy/systemd/$daemon"*.service.in)
    {
        echo '#!/bin/bash'
        sed -n 's/^Environment=/export /p' "$unit"
        echo "exec strace -D -f -qq -s 0 -o '$tmp/$daemon.'\$\$ '$bin/$daemon' \"\$@\""
    } >"$tmp/bin/$daemon"
    chmod +x "$tmp/bin/$daemon"
done
for test in snapshot_rules elastic_drain clean_run; do
    TMPDIR=$tmp CAIRN_TEST_DAEMONS=$tmp/bin "$bin/tests/test_$test" >"$tmp/log" 2>&1 ||
        { cat "$tmp/log"; fail "test_$test does not pass while its daemons are traced"; }
done

# names WORD: the calls of a group, and of the groups within it; of another word, itself.
names() {
    local line
    case $1 in
    @*) systemd-analyze --no-pager syscall-filter "$1" 2>/dev/null | sed -n '2,$s/^ *\([@a-z0-9_-]*\)$/\1/p' |
        while read -r line; do names "$line"; done ;;
    *) echo "$1" ;;
    esac
}

# allowed UNIT: what its SystemCallFilter= lines leave, the first of which is a list of what is allowed.
allowed() {
    local line word
    : >"$tmp/allowed"
    while read -r line; do
        for word in ${line#\~}; do names "$word"; done | sort -u >"$tmp/words"
        case $line in
        \~*) comm -23 "$tmp/allowed" "$tmp/words" ;;
        *) sort -u "$tmp/allowed" "$tmp/words" ;;
        esac >"$tmp/next"
        mv "$tmp/next" "$tmp/allowed"
    done < <(sed -n 's/^SystemCallFilter=//p' "$1")
    # Allowed by every filter of a list, whatever it says.
    names @default | sort -u - "$tmp/allowed"
}

for daemon in cairn-coordinator cairn-shard; do
    unit=$(echo "$root/deploy/systemd/$daemon"*.service.in)
    allowed "$unit" >"$tmp/$daemon.allowed"
    # "PID name(...": of a call that another thread interrupted, the line of its beginning.
    # execve is of what starts the daemon. fchown is of SQLite where it runs as root, as no unit does.
    cat "$tmp/$daemon".[0-9]* | sed -nE 's/^[0-9]+ +([a-z][a-z0-9_]*)\(.*/\1/p' | grep -vxE 'execve|fchown' |
        sort -u >"$tmp/used"
    [ "$(wc -l <"$tmp/used")" -gt 40 ] || fail "$daemon: only $(wc -l <"$tmp/used") system calls were seen"
    refused=$(comm -23 "$tmp/used" "$tmp/$daemon.allowed")
    [ -z "$refused" ] || fail "$daemon makes calls that ${unit##*/} refuses: $(echo "$refused" | tr '\n' ' ')"
    executed=$(cat "$tmp/$daemon".[0-9]* | grep -cE '^[0-9]+ +execve(at)?\(' || true)
    started=$(find "$tmp" -maxdepth 1 -name "$daemon.[0-9]*" | wc -l)
    [ "$executed" -eq "$started" ] || fail "$daemon started another program: $executed of $started"
    changed=$(cat "$tmp/$daemon".[0-9]* | grep -E 'PROT_WRITE\|PROT_EXEC|(mprotect|pkey_mprotect)\(.*PROT_EXEC' || true)
    [ -z "$changed" ] || fail "$daemon makes memory executable, which ${unit##*/} refuses: $(head -n 3 <<<"$changed")"
    denied=$(cat "$tmp/$daemon".[0-9]* | grep -oE 'socket\((AF|PF)_[A-Z0-9]+' | sed 's/.*(//' | sort -u |
        grep -vE "^(AF_UNIX|AF_INET|AF_INET6|AF_NETLINK)$" || true)
    [ -z "$denied" ] || fail "$daemon opens sockets that ${unit##*/} refuses: $denied"
    echo "$daemon: $started processes, $(wc -l <"$tmp/used") different system calls, all of them allowed"
done
