#!/bin/bash
# The sample configurations are what the daemons print, the daemons take them as they stand, and the man page
# has each key. The configurations that the README shows are taken, too.
# usage: samples.sh SOURCE_FOLDER BIN_FOLDER
set -euo pipefail
tmp=$(mktemp)
trap 'rm -f "$tmp"' EXIT
for daemon in cairn-coordinator cairn-shard; do
    sample=$1/deploy/$daemon.conf.sample
    "$2/$daemon" --print-config | diff "$sample" - ||
        { echo "FAILED: build/bin/$daemon --print-config >deploy/$daemon.conf.sample"; exit 1; }
    given=()
    [ $daemon = cairn-coordinator ] || given=(--set shard.name=s)
    "$2/$daemon" --config "$sample" "${given[@]}" --check-config >/dev/null
    section=
    while read -r line; do
        case $line in
        "["*"]") section=${line:1:-1} ;;
        "#"[a-z]*" ="*)
            key=$section.${line:1}
            grep -qF "*${key%% =*}*" "$1/deploy/man/$daemon.8.scd" ||
                { echo "FAILED: deploy/man/$daemon.8.scd has no *${key%% =*}*"; exit 1; } ;;
        esac
    done <"$sample"
done

# Those of the README's three nodes, by a machine that has neither its device nor its address.
for daemon in coordinator shard; do
    elsewhere=()
    [ $daemon = coordinator ] || elsewhere=(--set shard.name=s --set fabric.device=lo)
    sed -n "/^    # \/etc\/cairn\/$daemon\.conf/,/^\$/s/^    //p" "$1/README.md" >"$tmp"
    [ -s "$tmp" ] || { echo "FAILED: README.md shows no /etc/cairn/$daemon.conf"; exit 1; }
    "$2/cairn-$daemon" --config "$tmp" "${elsewhere[@]}" --check-config >/dev/null
done
