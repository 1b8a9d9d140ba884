#!/bin/bash
# The shell's completions: nouns, verbs and options as --help has them, names as the cluster's.
# usage: completions.sh SOURCE_FOLDER BUILD_FOLDER
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# A cairn whose cluster has two jobs, one with a snapshot.
cat >"$tmp/cairn" <<END
#!/bin/bash
case "\$*" in
"--timeout 1 job list -q") echo gpt; echo toy ;;
"--timeout 1 cluster status -q") printf 'NAME ROLE\ns1 shard\nw1 worker\ns2 shard\n' ;;
"--timeout 1 snapshot list toy -q") echo step-000000000001-g1 ;;
*) exec $2/bin/cairn "\$@" ;;
esac
END
chmod +x "$tmp/cairn"
cat >"$tmp/cases" <<'END'
cairn sn|snapshot
cairn cluster ad|adopt
cairn job drop t|toy
cairn job show |gpt toy
cairn snapshot restore toy |step-000000000001-g1
cairn --endpoint /x job -o j|json
cairn job drop toy --f|--force
cairn job to|top
cairn job top |gpt toy
cairn job plan t|toy
cairn job list --w|--watch
cairn snapshot rm toy step-000000000001-g1 --y|--yes
cairn member drain |s1 s2
cairn reshard apply t|toy
cairn reshard apply toy --add s2 --drain |s1 s2
cairn reshard status toy --n|--no-headers
cairn snapshot advise toy --m|--mtbf
cairn nothing |
cairn job amend toy --snapshot-staging s|state small
cairn job plan toy --wire b|bf16
cairn bench step --read m|map
cairn snapshot export toy x --to /nowhere/|
cairn snapshot diff toy one |step-000000000001-g1
cairn snapshot tag toy one |
cairn job list --timeout |
END

# check SHELL...: each case in that shell. What does not begin with the word zsh leaves out by itself.
check() {
    local line got
    while IFS='|' read -r line wanted; do
        # shellcheck disable=SC2016 # the other shell's
        got=$(PATH=$tmp:$PATH "$@" -c '
            if [ -n "${ZSH_VERSION:-}" ]; then
                autoload -U +X compinit bashcompinit
                compinit -D
                bashcompinit
                emulate sh
                setopt kshglob noshglob braceexpand
            fi
            . "$0"
            COMP_WORDS=($1)
            case $1 in *" ") COMP_WORDS+=("") ;; esac
            COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
            _cairn
            printf "%s\n" "${COMPREPLY[@]}" | grep "^${COMP_WORDS[COMP_CWORD]}" | xargs' \
            "$source/deploy/completions/cairn.bash" "$line" 2>&1)
        [ "$got" = "$wanted" ] || { echo "FAILED: $1: \"$line\" gave \"$got\", not \"$wanted\""; exit 1; }
    done <"$tmp/cases"
    echo "$1: $(wc -l <"$tmp/cases") lines are completed"
}
source=$1
check bash --norc
if command -v zsh >/dev/null; then check zsh -f; else echo "skip: zsh is not here, its completion was not tried"; fi
