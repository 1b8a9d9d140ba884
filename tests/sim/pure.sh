#!/bin/sh
# The cores and the push machine are pure: they call nothing but memory functions, assert and the pure
# functions of proto/wire, and keep no variable of their own.
#   pure.sh ARCHIVE-OR-OBJECT...
set -eu
bad=0
for file in "$@"; do
    defined=$(nm --defined-only -g "$file" 2>/dev/null | awk 'NF == 3 { print $3 }' | sort -u)
    used=$(nm -u "$file" 2>/dev/null | awk '$1 == "U" { print $2 }' | sort -u)
    for name in $used; do
        case $name in
        memcpy | memset | memcmp | memmove | __assert_fail | _GLOBAL_OFFSET_TABLE_) continue ;;
        __stack_chk_fail) continue ;; # of compilers that guard the stack by default, as Ubuntu's
        exact_add | update_norm_of | group_scalars_* | schedule_lr) continue ;;
        sentence_set | sentence_add | fail_with | capability_name) continue ;;
        esac
        if ! printf '%s\n' "$defined" | grep -qxF "$name"; then
            echo "$file calls $name"
            bad=1
        fi
    done
    variables=$(size -A "$file" | awk '($1 == ".data" || $1 == ".bss") { sum += $2 } END { print sum + 0 }')
    if [ "$variables" -ne 0 ]; then
        echo "$file keeps $variables bytes of variables"
        bad=1
    fi
done
exit $bad
