# Completion of cairn(1) for bash, and for zsh by its bashcompinit. Words, options and their values come from
# `cairn --help` and names from the cluster, so that nothing is written twice; a coordinator that does not answer
# within a second has no names.

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

# The options that take a value, each with what stands for it: " -o=table|json --add=NAME ".
_cairn_values() {
    cairn "$@" --help 2>/dev/null | awk '
        $1 == "options:" { inside = 1; printf " "; next }
        inside && /^  -/ && $1 !~ /,$/ && substr($0, length($1) + 4) ~ /^[A-Z]|^[a-z0-9-]+\|/ {
            printf "%s=%s ", $1, $2
        }'
}

# What stands for the argument of that number, from 0, in the usage of a subcommand: "ID|latest".
_cairn_argument() {
    cairn "$2" "$3" --help 2>/dev/null | awk -v at="$1" '$1 == "cairn" { print $(4 + at); exit }'
}

_cairn_names() {
    cairn --timeout 1 "$@" -q 2>/dev/null
}

_cairn_shards() {
    _cairn_names cluster status | awk '$2 == "shard" { print $1 }'
}

# shellcheck disable=SC2207 # names have no blanks, and zsh has no mapfile
_cairn() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} given=() found='' values i
    values=$(_cairn_values)
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        -*) [[ $values == *" ${COMP_WORDS[i]}="* ]] && ((i++)) ;;
        *) given+=("${COMP_WORDS[i]}") ;;
        esac
    done
    COMPREPLY=()
    if [[ $before == -* && $values == *" $before="* ]]; then
        values=$(_cairn_values "${given[@]:0:2}") # an option may mean something else elsewhere
        local value=${values#* "$before"=}
        value=${value%% *}
        case $before=$value in
        --add=* | --drain=*) found=$(_cairn_shards) ;;
        *FILE* | *FOLDER* | *DIR | *ROOT) COMPREPLY=($(compgen -f -- "$word")) && return ;;
        *[A-Z]*) ;;
        *) found=${value//|/ } ;;
        esac
    elif [[ $word == -* ]]; then
        found=$(_cairn_options "${given[@]:0:2}")
    elif [[ ${#given[@]} -lt 2 ]]; then
        found=$(_cairn_words "${given[@]:0:1}")
    else
        case ${given[*]:0:1}:$(_cairn_argument $((${#given[@]} - 2)) "${given[@]:0:2}") in
        shard:NAME | member:NAME) found=$(_cairn_shards) ;;
        *:*JOB*) found=$(_cairn_names job list) ;;
        snapshot:*ID*) found=$(_cairn_names snapshot list "${given[*]:2:1}") ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$found" -- "$word"))
}
complete -F _cairn cairn
