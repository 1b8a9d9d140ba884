#!/usr/bin/env python3
"""What a compiled program depends on in cairn.h: every number, the size of every struct, offset and size of
every member, and every function. Held against libcairn.abi beside this file.

usage: abi.py HEADER [--renew]    CC is the compiler; --renew writes libcairn.abi instead

A line that is new at the end of a struct, a new number or function harms nobody: structs carry their size.
A line that changes or goes breaks programs that exist: then the SOVERSION changes with it. Either way
run it with --renew and commit the file with the header.
"""
import difflib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

GOLDEN = Path(__file__).with_name("libcairn.abi")
CC = os.environ.get("CC", "cc")


def own_text(header):
    """The header as the compiler sees it, without what it includes."""
    made = subprocess.run([CC, "-E", "-D__attribute__(x)=", "-x", "c", header], check=True, capture_output=True,
                          text=True).stdout
    text, mine = [], False
    for line in made.split("\n"):
        marker = re.match(r'# \d+ "([^"]*)"', line)
        if marker:
            mine = os.path.realpath(marker.group(1)) == os.path.realpath(header)
        elif mine:
            text.append(line)
    return re.sub(r"\s+", " ", " ".join(text))


def members(body):
    """Names of a struct's members, in order."""
    for declaration in body.split(";"):
        for declarator in declaration.split(","):
            name = re.search(r"(\w+)\s*(\[[^\]]*\]\s*)*$", declarator.strip())
            if name:
                yield name.group(1)


def program(header, text):
    """C text that prints a line for each number, struct and member."""
    say = lambda what, *values: f'    printf("{what}\\n"{"".join(", " + v for v in values)});'
    lines = ["#include <stddef.h>", "#include <stdio.h>", f'#include "{header}"', "int main(void)", "{"]
    for kind, body in re.findall(r"enum (\w+) \{([^}]*)\}", text):
        for name in re.findall(r"(\w+)\s*(?:=[^,]*)?(?:,|$)", body):
            lines.append(say(f"{kind} {name} %lld", f"(long long){name}"))
    for name, body in re.findall(r"struct (\w+) \{([^}]*)\}", text):
        lines.append(say(f"struct {name} %zu bytes", f"sizeof(struct {name})"))
        for member in members(body):
            lines.append(say(f"struct {name} {member} at %zu, %zu bytes", f"offsetof(struct {name}, {member})",
                             f"sizeof(((struct {name} *)0)->{member})"))
    return "\n".join(lines + ["    return 0;", "}", ""])


def functions(text):
    without_bodies = re.sub(r"\{[^}]*\}", "", text)
    for declaration in without_bodies.split(";"):
        declaration = declaration.strip()
        if re.search(r"\bcairn_\w+\(", declaration) and not declaration.startswith("typedef"):
            yield declaration.replace(", ", ",\n    ") + ";"


def layout(header):
    text = own_text(header)
    with tempfile.TemporaryDirectory() as folder:
        source, binary = f"{folder}/abi.c", f"{folder}/abi"
        Path(source).write_text(program(os.path.realpath(header), text))
        subprocess.run([CC, source, "-o", binary], check=True)
        printed = subprocess.run([binary], check=True, capture_output=True, text=True).stdout
    return (printed + "\n".join(sorted(functions(text)))).splitlines()


def main():
    now = layout(sys.argv[1])
    if sys.argv[2:] == ["--renew"]:
        GOLDEN.write_text("\n".join(now) + "\n")
        return 0
    then = GOLDEN.read_text().splitlines()
    if now == then:
        print(f"abi: {len(now)} lines as in {GOLDEN.name}")
        return 0
    print("\n".join(difflib.unified_diff(then, now, GOLDEN.name, "cairn.h", lineterm="", n=1)))
    print(f"if this is meant: {sys.argv[0]} {sys.argv[1]} --renew, and commit {GOLDEN.name} with the header")
    return 1


if __name__ == "__main__":
    sys.exit(main())
