#!/usr/bin/env python3
"""Adds a policy field to a copy of the tree, as proto/README.md says, and counts the files that take it: few are
written by hand, the others by scripts. Then the copy is compiled as far as the field reaches, and the field goes from
Python to the struct of cairn.h, is set by name, differs, travels and is hashed. (Recorded outputs that show a whole
spec, tests/golden/outputs, are recorded anew as after any change of what is printed.)

usage: spec_field_added.py ROOT
"""
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MOST = 6
NAME = "snapshot_retries"
CC = os.environ.get("CC", "cc")
SYNTAX = ("proto/wire/messages.c proto/snapshot/manifest.c proto/snapshot/manifest_decode.c client/spec.c "
          "client/layouts.c client/ctl/options.c client/ctl/main.c client/ctl/job.c server/coordinator/amend.c "
          "server/coordinator/amend_spec.c server/coordinator/terms.c").split()
LIBRARIES = "libprotobuf-c libsodium libxxhash jansson libuv".split()
PROGRAM = r"""
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include "proto/spec/spec.h"
#include "proto/wire/wire.h"

static void expect(void *context, const struct spec_difference *d)
{
    char text[CAIRN_DIFFERENCE_TEXT_MAX];
    difference_text(d, "here", "on the servers", text);
    assert(strcmp(text, "job toy: FIELD 0 here, 7 on the servers") == 0 && strcmp(d->key, "FIELD") == 0);
    ++*(int *)context;
}

int main(void)
{
    struct job_spec_data plain, other, back;
    struct sentence why;
    enum spec_change change;
    uint8_t *bytes, hash[2][32];
    size_t len;
    int found = 0;
    struct group_spec group = group_default();
    const struct tensor_spec tensor = { .name = "w", .group = "default", .kind = CAIRN_TRAINED, .wire = CAIRN_F32,
                                        .reduce = CAIRN_F32, .master = CAIRN_F32, .shape = { 1, { 4 } } };
    spec_init(&plain);
    assert(spec_set_name(&plain, "toy") == CAIRN_OK && spec_add_tensor(&plain, &tensor) == CAIRN_OK);
    group.name = "default";
    group.optimizer = "adamw";
    assert(spec_add_group(&plain, &group) == CAIRN_OK);
    spec_canonicalize(&plain);
    assert(spec_copy(&plain, &other) == CAIRN_OK);
    assert(spec_set(&other, "FIELD", "101", &change, &why) == CAIRN_ERR_INVALID);
    assert(strcmp(why.text, "FIELD is 101; allowed: 0 to 100") == 0);
    assert(spec_set(&other, "FIELD", "7", &change, &why) == CAIRN_OK && change == CAIRN_SPEC_NEXT_ROUND);
    assert(spec_diff(&plain, &other, 9, expect, &found) == 1 && found == 1);
    assert(!policy_same(&plain.policy, &other.policy));
    assert(spec_hash(&plain, hash[0]) == CAIRN_OK && spec_hash(&other, hash[1]) == CAIRN_OK);
    assert(memcmp(hash[0], hash[1], 32) != 0);
    assert(spec_pack(&other, &bytes, &len) == CAIRN_OK);
    assert(spec_unpack(bytes, len, optimizer_names(), &back, &why) == CAIRN_OK);
    assert(spec_diff(&other, &back, 0, NULL, NULL) == 0 && back.policy.FIELD == 7);
    return 0;
}
""".replace("FIELD", NAME)
PYTHON = f"""
from cairn import _c
from cairn.spec import Amendment, JobSpec, amend_to_c, to_c
made, alive = to_c(JobSpec([], {NAME}=7))
assert made.{NAME} == 7 and "`{NAME}`: Tries" in JobSpec.__doc__
made, alive = amend_to_c(Amendment(snapshot_rules={{"{NAME}": 7}}), 0)
words = {{made.settings[i].key.decode(): made.settings[i].value.decode() for i in range(made.setting_count)}}
assert words["{NAME}"] == "7" and words["snapshot_staging"] == "state", words
"""


def by_hand(tree):
    """What a person writes; returns the files."""
    def edit(name, old, new):
        text = (tree / name).read_text()
        at = text.rindex(old) + len(old)
        (tree / name).write_text(text[:at] + new + text[at:])
        return name

    fields = tree / "proto/spec/spec_fields.h"
    text = fields.read_text()
    for macro, row in (("CAIRN_SPEC_FIELDS", f"X({NAME}, policy.{NAME}, COUNT, RANGE(0, 100), 0, LATER, GIVEN, "
                        "NEXT_ROUND)"),
                       ("CAIRN_SPEC_WORDS", f'X({NAME}, 140, "", "snapshot-retries", "N", "tries of a snapshot", '
                        '"Tries of a periodic snapshot that failed; 0 = none")')):
        at = text.index("\n\n", text.index(f"#define {macro}(X)"))
        text = f"{text[:at]} \\\n    {row}{text[at:]}"
    fields.write_text(text)
    return {"proto/spec/spec_fields.h",
            edit("proto/spec/spec.h", "cairn_snapshot_staging snapshot_staging;\n", f"    uint32_t {NAME};\n")}


def files(tree):
    return {path.relative_to(tree).as_posix(): path.read_bytes() for path in tree.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts}


def run(*words, **more):
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))[:300]}\n{done.stdout}{done.stderr}")
    return done.stdout


def compile_all(tree, room):
    options = run("pkg-config", "--cflags", "--libs", *LIBRARIES).split()
    run("protoc-c", f"--proto_path={tree}/proto/wire", f"--c_out={room}", "control.proto")
    common = [CC, "-std=c11", "-D_GNU_SOURCE", '-DCAIRN_VERSION="0"', '-DCAIRN_BUILD="0"', "-ffp-contract=off", "-O0",
              f"-I{tree}", f"-I{room}", f"-I{tree}/client/include"]
    for name in SYNTAX:
        run(*common, "-fsyntax-only", tree / name, *options)
    (room / "try.c").write_text(PROGRAM)
    sources = [str(path) for part in ("base", "geometry", "spec") for path in (tree / "proto" / part).glob("*.c")]
    run(*common, "-w", room / "try.c", room / "control.pb-c.c", tree / "proto/wire/messages.c",
        tree / "proto/wire/chunk.c", *sources, "-o", room / "try", "-pthread", *options, "-lm")
    run(room / "try")


def main(root):
    if not all(map(shutil.which, (CC, "protoc-c", "pkg-config"))):
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        tree, room = Path(folder) / "tree", Path(folder) / "room"
        room.mkdir()
        for part in ("proto", "client", "server", "gpu", "tests/installed", "tests/tree"):
            shutil.copytree(root / part, tree / part, ignore=shutil.ignore_patterns("__pycache__", "*.so*"))
        was = files(tree)
        hand = by_hand(tree)
        run(sys.executable, tree / "tests/tree/spec_fields.py", tree)
        run(sys.executable, tree / "tests/tree/spec_fields.py", tree, "--check")
        run(sys.executable, tree / "tests/installed/abi.py", tree / "client/include/cairn.h", "--renew")
        now = files(tree)
        touched = {name for name in now if now[name] != was.get(name)}
        print(f"by hand ({len(hand)}): {', '.join(sorted(hand))}\n"
              f"by two scripts ({len(touched - hand)}): {', '.join(sorted(touched - hand))}")
        lost = set(was["tests/installed/libcairn.abi"].decode().splitlines()) - set(
            now["tests/installed/libcairn.abi"].decode().splitlines())
        if len(hand) > MOST or any("struct cairn_job_spec " not in line for line in lost):
            sys.exit(f"at most {MOST} files by hand; and these lines of libcairn.abi went: {lost}")
        compile_all(tree, room)
        python = {**os.environ, "PYTHONPATH": f"{tree}/client/python:{tree}/client/python/tests",
                  "CAIRN_SOURCE": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
        run(sys.executable, "-c", PYTHON, env=python)
        run(sys.executable, tree / "client/python/tests/test_header.py", env=python)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
