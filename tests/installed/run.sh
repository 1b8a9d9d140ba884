#!/bin/bash
# What is installed is what is promised: one header that C++ takes and whose layout is that of libcairn.abi, a
# library that exports the functions of the header and nothing else, a pkg-config file that a program can be
# built with, man pages without warnings.
# usage: run.sh BUILD_FOLDER SOURCE_FOLDER
set -euo pipefail
build=$1 source=$2
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

DESTDIR=$tmp cmake --install "$build" >"$tmp/install.log" || { cat "$tmp/install.log"; fail "cmake --install"; }
header=$(find "$tmp" -name cairn.h)
library=$(find "$tmp" -name libcairn.so)
pc=$(find "$tmp" -name cairn.pc)

for program in cairn cairn-bench cairn-coordinator cairn-shard; do
    [ -n "$(find "$tmp" -path "*/bin/$program")" ] || fail "$program is not installed"
done

grep -oE 'cairn_[a-z_]+\(' "$header" | tr -d '(' | sort -u >"$tmp/declared"
nm -D --defined-only "$library" | awk '$2 == "T" { print $3 }' | sed 's/@.*//' | sort -u >"$tmp/exported"
grep -E 'CAIRN_EXPORT' -A1 "$header" | grep -oE 'cairn_[a-z_]+\(' | tr -d '(' | sort -u >"$tmp/promised"
diff "$tmp/promised" "$tmp/exported" ||
    fail "the library does not export what the header declares (< header, > library)"
nm -D --defined-only "$library" | awk '$2 != "A" && $2 != "T"' | grep . && fail "data is exported"
while read -r name; do
    grep -qF "*$name*" "$source/deploy/man/libcairn.3.scd" || fail "deploy/man/libcairn.3.scd has no *$name*"
done <"$tmp/promised"
echo "exports: $(wc -l <"$tmp/exported") functions"

"$source/tests/installed/abi.py" "$header" || fail "programs that exist depend on another cairn.h"
if command -v abidw >/dev/null; then
    abidw --out-file "$tmp/libcairn.abixml" "$library" || fail "abidw cannot read the library"
    abidiff "$tmp/libcairn.abixml" "$library" >/dev/null || fail "the library is not itself, says abidiff"
else
    echo "skip: abidw (abigail-tools) is not here, the library was not read by it"
fi

[ "$(find "$tmp" -name '*.h' | wc -l)" = 1 ] || fail "more than one header is installed"
cat >"$tmp/consumer.cpp" <<'END'
#include <cairn.h>
#include <cstring>
namespace cairn { struct session { cairn_session *handle; }; } // a wrapper's own
int main()
{
    cairn::session none = { nullptr };
    cairn_close(none.handle);
    if (std::strcmp(cairn_version(), CAIRN_VERSION) != 0) return 1;
    if (std::strcmp(cairn_status_name(CAIRN_ERR_BUSY), "CAIRN_ERR_BUSY") != 0) return 1;
    cairn_group group = CAIRN_GROUP_INIT;
    cairn_stats stats = {};
    stats.struct_size = sizeof stats;
    return group.lr > 0 && cairn_job_stats(nullptr, &stats) == CAIRN_ERR_HANDLE ? 0 : 1;
}
END
for standard in c++11 c++14 c++17 c++20; do
    "${CXX:-g++}" "-std=$standard" -Wall -Wextra -Wpedantic -Werror \
        -I "$(dirname "$header")" "$tmp/consumer.cpp" -o "$tmp/consumer-$standard" \
        -L "$(dirname "$library")" -lcairn || fail "the header is not $standard"
    LD_LIBRARY_PATH=$(dirname "$library") "$tmp/consumer-$standard" || fail "a $standard program does not run"
done
"${CC:-gcc}" -x c -std=c11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only "$header" || fail "the header is not C11"

cat >"$tmp/consumer.c" <<'END'
#include <cairn.h>
#include <stdio.h>
int main(void)
{
    cairn *session;
    const struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = "/nowhere/socket",
                                     .connect_timeout_ms = 50 };
    const cairn_status status = cairn_open(&opts, &session);
    printf("%d %s\n", (int)status, cairn_error());
    return status == CAIRN_ERR_UNREACHABLE ? 0 : 1;
}
END
flags=$(PKG_CONFIG_SYSROOT_DIR=$tmp PKG_CONFIG_PATH=$(dirname "$pc") pkg-config --cflags --libs cairn)
# shellcheck disable=SC2086 # words on purpose
"${CC:-gcc}" "$tmp/consumer.c" -o "$tmp/consumer" $flags || fail "a program cannot be built with cairn.pc"
LD_LIBRARY_PATH=$(dirname "$library") "$tmp/consumer" || fail "the program does not run"

cmake --install "$build" --prefix "$tmp/elsewhere" >"$tmp/install.log" || fail "cmake --install --prefix"
units=$tmp/elsewhere/lib/systemd/system
for file in $(find "$tmp/elsewhere" -name cairn.pc) "$units"/cairn-{coordinator,shard@}.service; do
    grep -q "$tmp/elsewhere" "$file" || fail "$file names another place than where it is installed"
    grep -qE '@[A-Z_]+@' "$file" && fail "$file has a placeholder"
done
[ -x "$(sed -n 's/^ExecStart=\([^ ]*\).*/\1/p' "$units/cairn-coordinator.service")" ] ||
    fail "the unit starts a program that is not installed"
(   # As deploy/README.md says, from a folder with nothing in it.
    mkdir "$tmp/empty" && cd "$tmp/empty"
    export PKG_CONFIG_PATH=$tmp/elsewhere/lib/pkgconfig LD_LIBRARY_PATH=$tmp/elsewhere/lib
    # shellcheck disable=SC2046 # words on purpose
    "${CC:-gcc}" "$tmp/consumer.c" $(pkg-config --cflags --libs cairn) -o consumer && ./consumer
) || fail "a program cannot be built with an installation at a --prefix, or does not run"
rm -rf "$tmp/elsewhere"

# The program that the README shows, as it stands there; what it leaves to the reader is added.
awk '/^```/ { inside = ($0 == "```c"); next } inside' "$source/README.md" >"$tmp/readme.c"
cat >>"$tmp/readme.c" <<'END'
void compute_gradients(const float *w, float *g, const struct cairn_round *round) { g[round->rank] = w[0]; }
END
# shellcheck disable=SC2086
"${CC:-gcc}" -std=c11 -Wall -Wextra -Werror "$tmp/readme.c" -o "$tmp/readme" $flags ||
    fail "the README's program cannot be built"

# shellcheck disable=SC2086
"${CC:-gcc}" -std=c11 -Wall -Wextra -Werror "$source/client/examples/fashion_mnist.c" \
    -o "$tmp/example" $flags -lz -lm ||
    fail "the example is not C11 with what POSIX adds"

# A page that is missing is said, whether scdoc is, or nobody built it.
missing=0
for page in "$source"/deploy/man/*.scd; do
    name=$(basename "$page" .scd)
    [ -n "$(find "$tmp" -path "*/man/*/$name")" ] || missing=$((missing + 1))
done
[ "$missing" = 0 ] || grep -qE "scdoc is not here|is not made, and not installed" "$tmp/install.log" ||
    fail "$missing man pages are not installed, and nobody was told"
if grep -q "$build/man/" "$build/cmake_install.cmake"; then
    sed "s|$build/man/|$tmp/nowhere/|g" "$build/cmake_install.cmake" >"$tmp/no_pages.cmake"
    DESTDIR=$tmp/without cmake -P "$tmp/no_pages.cmake" 2>&1 | tr -s '[:space:]' ' ' >"$tmp/no_pages.log"
    grep -q "cairn.1 is not made, and not installed" "$tmp/no_pages.log" ||
        fail "pages that nobody built are not told of"
    rm -rf "$tmp/without"
fi

if command -v scdoc >/dev/null && command -v man >/dev/null; then
    for page in "$source"/deploy/man/*.scd; do
        scdoc <"$page" >"$tmp/page" || fail "$page"
        warnings=$(LC_ALL=C.UTF-8 man --warnings -l "$tmp/page" 2>&1 >/dev/null)
        [ -z "$warnings" ] || fail "$page: $warnings"
    done
    echo "man pages: $(find "$source/deploy/man" -name '*.scd' | wc -l) without warnings"
else
    echo "skip: scdoc or man is not here, the man pages were not read"
fi
