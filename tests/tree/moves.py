#!/usr/bin/env python3
"""Shows that a move of functions between files is one: both trees are compiled without inlining, and every function's
machine code is the same but for addresses and the names of a list.

usage: moves.py OLD NEW NAMES     OLD, NEW: build folders with compile_commands.json
NAMES: lines "old new" (anywhere) or "file: old -> new" (in that file of the old tree). Prints what differs; exits
with 1 if anything does. Functions that went or came are listed; look at each: a copy that went may have been another
one's.
"""
import collections
import difflib
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

FLAGS = ("-O1 -g0 -DNDEBUG -w -fno-inline -fno-ipa-icf -fno-ipa-sra -fno-ipa-cp -fno-ipa-pure-const -fno-ipa-modref "
         "-fno-ipa-reference -fno-ipa-profile -fno-ipa-ra -fno-jump-tables -fno-toplevel-reorder "
         "-fno-tree-switch-conversion -fno-guess-branch-probability -fcf-protection=none "
         "-fno-asynchronous-unwind-tables -fno-pic -S -o -").split()
PRODUCT = re.compile(r"^(server|client|proto|gpu)/.*\.c$")


def commands(build):
    """Each product source once, as (path in the tree, directory, arguments)."""
    found = {}
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        listed = json.load(file)
    with open(os.path.join(build, "CMakeCache.txt"), encoding="utf-8") as file:
        root = re.search(r"CMAKE_HOME_DIRECTORY:INTERNAL=(.*)", file.read()).group(1)
    for entry in listed:
        path = os.path.relpath(os.path.join(entry["directory"], entry["file"]), root)
        if not PRODUCT.match(path) or path in found or "/isa/" in path:
            continue
        words = entry["command"].split()
        words = words[1:] if os.path.basename(words[0]) == "ccache" else words
        kept, skip = [], False
        for word in words:
            if skip or word in ("-c", "-g", "-g1", "-Werror"):
                skip = False
            elif word in ("-o", "-MF", "-MT"):
                skip = True
            elif not re.match(r"-(O\d|M|fPI[CE]|fpi[ce])", word):
                kept.append(word.replace('\\"', '"'))
        found[path] = (entry["directory"], kept + FLAGS)
    return found


def assembly(job):
    path, (directory, words) = job
    done = subprocess.run(words, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{path}: {done.stderr[:400]}")
    return path, done.stdout


def constants(lines):
    """What stands behind each label of a constant."""
    out, label = {}, None
    for line in lines:
        match = re.match(r"(\.LC\d+):", line)
        if match:
            label = match.group(1)
            out[label] = ""
        elif label and re.match(r"\s+\.(string|ascii|long|quad|zero|byte|value)\b", line):
            out[label] += line.strip() + ";"
        elif label and not re.match(r"\s+\.align", line):
            label = None
    return out


def functions(text, table):
    """Every function as text, without what a place in a file changes."""
    lines = text.split("\n")
    known = constants(lines)
    out, name, body = collections.Counter(), None, []
    typed = set(re.findall(r"\.type\s+([\w.]+), @function", text))
    rename = lambda symbol: table.get(symbol, symbol)
    for line in lines:
        match = re.match(r"([A-Za-z_][\w.]*):", line)
        if match and match.group(1) in typed:
            name, body, labels = re.sub(r"\.\d+$", "", match.group(1)), [], {}
            continue
        if name is None:
            continue
        if re.match(r"\s+\.size\s", line):
            out[(rename(name), "\n".join(body))] += 1
            name = None
            continue
        if re.match(r"\s+\.", line):
            continue
        line = re.sub(r"\.LC\d+", lambda m: "<" + known.get(m.group(), "?") + ">", line)
        line = re.sub(r"\.L\d+", lambda m: labels.setdefault(m.group(), f".L#{len(labels)}"), line)
        line = re.sub(r"(?<![%\w.<])[A-Za-z_]\w*(?:\.\d+)?", lambda m: rename(re.sub(r"\.\d+$", "", m.group())), line) \
            if not line.lstrip().startswith(".") else line
        body.append(line.strip())
    return out


def in_code(text, names):
    return re.sub(r"(?<![\w.])[A-Za-z_]\w*", lambda m: names.get(m.group(), m.group()), text)


def main():
    old_build, new_build, names = sys.argv[1:]
    everywhere, in_file = {}, collections.defaultdict(dict)
    with open(names, encoding="utf-8") as file:
        for line in file:
            match = re.match(r"(\S+): (\w+) -> (\w+)$", line.strip())
            words = line.split()
            if match:
                in_file[match.group(1)][match.group(2)] = match.group(3)
            elif len(words) >= 2:
                everywhere[words[0]] = words[1]
    then, now = collections.Counter(), collections.Counter()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, text in pool.map(assembly, commands(old_build).items()):
            first = functions(text, in_file[path])
            for (name, body), count in first.items():
                body = "".join(text if place % 2 else in_code(text, everywhere)
                               for place, text in enumerate(re.split(r"(<[^\n]*>)", body)))
                name = everywhere.get(name, name)
                then[(name, body)] += count
        for path, text in pool.map(assembly, commands(new_build).items()):
            now += functions(text, {})
    gone, come = then - now, now - then
    by_name = collections.defaultdict(list)
    for name, body in come:
        by_name[name].append(body)
    changed = sorted({name for name, _ in gone if name in by_name})
    was = collections.defaultdict(list)
    for name, body in gone:
        was[name].append(body)
    for name in changed:
        print("changed:", name)
        pair = was[name][0].split("\n"), by_name[name][0].split("\n")
        print("\n".join(list(difflib.unified_diff(*pair, lineterm="", n=1))[:24]))
    print("gone:", *sorted({name for name, _ in gone} - set(changed)))
    print("come:", *sorted({name for name, _ in come} - set(changed)))
    print(f"{sum((then & now).values())} functions are the same, {len(changed)} changed")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
