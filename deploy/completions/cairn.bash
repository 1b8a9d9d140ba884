# Completion of cairn(1) for bash, and for zsh by its bashcompinit. Words come from `cairn --help` and names from
# the cluster, so that neither is written twice; a coordinator that does not answer within a second has no names.

# The nouns, or the verbs of a noun.
_cairn_words() {
    cairn "$@" --help 2>/dev/null | awk -v noun="${1:-}" '
        $1 == "options:" { exit }
        $1 == "cairn" && noun == "" && $2 ~ /^[a-z]+$/ { print $2 }
        $1 == "cairn" && $2 == noun && $3 ~ /^[a-z]+$/ { print $3 }' | sort -u
}

# The options that a subcommand takes.
_cairn_options() {
    cairn "$@" --help 2>/dev/null | awk '
        $1 == "options:" { inside = 1; next }
        inside && /^  -/ { for (i = 1; i <= NF && $i ~ /^-/; i++) { sub(/,$/, "", $i); print $i } }'
}

_cairn_names() {
    cairn --timeout 1 "$@" -q 2>/dev/null
}

_cairn_shards() {
    _cairn_names cluster status | awk '$2 == "shard" { print $1 }'
}

# shellcheck disable=SC2207 # names have no blanks, and zsh has no mapfile
_cairn() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} given=() i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        --endpoint | --timeout | -o | --every | --shards | --workers | --lr | --group | --clip-norm | \
            --snapshot-every | --snapshot-keep | --on-shard-loss | --shard-loss-wait | \
            --add | --drain | --weight | --pause | \
            --path | --to | --format | --dtype | --max-file | --key | --read-data-subset | \
            --on-worker-loss | --worker-loss-wait | --since | --set | --from | --as) ((i++)) ;;
        -*) ;;
        *) given+=("${COMP_WORDS[i]}") ;;
        esac
    done
    COMPREPLY=()
    case $before in
    --on-shard-loss) COMPREPLY=($(compgen -W "wait restore-latest" -- "$word")) && return ;;
    --add | --drain) COMPREPLY=($(compgen -W "$(_cairn_shards)" -- "$word")) && return ;;
    --on-worker-loss) COMPREPLY=($(compgen -W "redo wait fail" -- "$word")) && return ;;
    -o) COMPREPLY=($(compgen -W "table json" -- "$word")) && return ;;
    --format) COMPREPLY=($(compgen -W "hf dcp torch" -- "$word")) && return ;;
    --dtype) COMPREPLY=($(compgen -W "f32 bf16" -- "$word")) && return ;;
    --path | --to | --key | --keep | --import | --timeline | --endpoint-file)
        COMPREPLY=($(compgen -f -- "$word")) && return
        ;;
    esac
    local found=
    if [[ $word == -* ]]; then
        found=$(_cairn_options "${given[@]:0:2}")
    else
        case ${#given[@]}:${given[*]:0:2} in
        0:*) found=$(_cairn_words) ;;
        1:*) found=$(_cairn_words "${given[0]}") ;;
        2:shard\ forget | 2:member\ drain) found=$(_cairn_shards) ;;
        2:job\ * | 2:snapshot\ * | 2:reshard\ *) found=$(_cairn_names job list) ;;
        3:snapshot\ *) found=$(_cairn_names snapshot list "${given[2]}") ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$found" -- "$word"))
}
complete -F _cairn cairn
