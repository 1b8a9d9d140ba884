#!/usr/bin/env python3
"""What static analysis finds in the product's C: nothing but what tests/tree/analysis.txt explains.

usage: analysis.py SOURCE_FOLDER BUILD_FOLDER [--write]    77: a tool is missing, or has not the version of the list

cppcheck reads all of it, and clang-tidy (.clang-tidy) what takes apart the bytes of strangers; gcc -fanalyzer reads
that, too, if CAIRN_TEST_LONG is set. A line of the list is `TOOL FILE CHECK COUNT REASON`: so many
findings of the check are in the file, and are none. --write prints the lines that the list lacks.
"""
import collections
import concurrent.futures
import json
import os
import re
import subprocess
import sys
from pathlib import Path

PRODUCT = ("server/", "proto/", "client/", "gpu/")
EXPOSED = ("proto/secure/", "proto/wire/", "proto/loop/", "proto/store/", "proto/safetensors/", "proto/snapshot/",
           "server/base/")
VERSIONS = {"cppcheck": "Cppcheck 2.10", "clang-tidy": "LLVM version 14.", "gcc": " 12."}
PLACE = r"^(?P<file>[^:\n]+):(?P<line>\d+):"
FINDINGS = {
    "cppcheck": re.compile(PLACE + r" (?P<check>\w+): (?P<said>.*)$", re.M),
    "clang-tidy": re.compile(PLACE + r"\d+: (?:warning|error): (?P<said>.*) \[(?P<check>[\w.-]+)[,\]]", re.M),
    "gcc": re.compile(PLACE + r"\d+: warning: (?P<said>.*) \[(?:CWE-\d+\] \[)?(?P<check>-Wanalyzer[\w-]+)\]", re.M),
}


def version_fits(tool):
    try:
        said = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return f"{tool} is not installed"
    return None if VERSIONS[tool] in said else f"{tool} is another one than {VERSIONS[tool].strip()}"


def said_by(command, folder):
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return run.stdout + run.stderr


def of_cppcheck(root, queue):
    """The macros of sys/queue.h it has to see, or it gives up the file."""
    return said_by(["cppcheck", "--quiet", "--std=c11", "--enable=warning,portability", "--library=posix,gnu", "-j2",
                    "-D__linux__", "-D__x86_64__", "-D__GNUC__", "-D_GNU_SOURCE", f"--include={queue}", "-I.",
                    "-Iclient/include",
                    # A folder that one thread reads; what is asked before there is another thread.
                    "--suppress=readdirCalled", "--suppress=getpwuidCalled", "--suppress=getgrgidCalled",
                    "--suppress=getgrnamCalled",
                    "--template={file}:{line}: {id}: {message}", *(name.rstrip("/") for name in PRODUCT)], root)


def compiled(root, build):
    """The command of each product's C file, once."""
    commands = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        name = os.path.relpath(entry["file"], root)
        if name.startswith(PRODUCT) and name.endswith(".c"):
            commands.setdefault(name, entry)
    return commands


def of_gcc(entry):
    words = [word for word in entry["command"].split() if word not in ("ccache", "-Werror")]
    words = ["gcc" if i == 0 else word for i, word in enumerate(words)]
    words[words.index("-o") + 1] = "/dev/null"
    # -O1: it sees through calls within a file, and ends.
    words = [re.sub(r"^-O\d$", "-O1", word.replace("\\", "")) for word in words]
    words = [word for word in words if not word.startswith(("-M", "CMakeFiles/"))]
    return said_by([*words, "-fanalyzer", "-fdiagnostics-plain-output"], entry["directory"])


def findings_of(tool, text, root):
    for match in FINDINGS[tool].finditer(text):
        name = os.path.relpath(os.path.join(root, match["file"]), root)
        if not name.startswith("..") and match["check"] != "clang-diagnostic-error":
            yield (tool, name, match["check"]), f"{name}:{match['line']}: {match['said']}"


def analyse(root, build):
    """{(tool, file, check): {text}}: what is in a header is found once, whoever includes it."""
    found = collections.defaultdict(set)
    queue = next(Path("/usr/include").glob("*linux-gnu/sys/queue.h"), "/usr/include/sys/queue.h")
    commands = compiled(root, build)
    names = [name for name in sorted(commands) if name.startswith(EXPOSED)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        runs = [("cppcheck", pool.submit(of_cppcheck, root, queue))]
        tidy = ["clang-tidy", "-p", str(build), "--quiet"]
        runs += [("clang-tidy", pool.submit(said_by, [*tidy, name], root)) for name in names]
        if os.environ.get("CAIRN_TEST_LONG"):
            runs += [("gcc", pool.submit(of_gcc, commands[name])) for name in names]
        for tool, run in runs:
            for key, text in findings_of(tool, run.result(), root):
                found[key].add(text)
    return found, len(names)


def main():
    root, build = (os.path.realpath(path) for path in sys.argv[1:3])
    for tool in VERSIONS:
        if (lacks := version_fits(tool)) is not None:
            print(f"skip: {lacks}")
            return 77
    allowed = {}
    for line in Path(root, "tests/tree/analysis.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            tool, name, check, count, _reason = line.split(None, 4)
            allowed[tool, name, check] = int(count)
    found, count = analyse(root, Path(build))
    more = {key: texts for key, texts in found.items() if len(texts) > allowed.get(key, 0)}
    for (tool, name, check), texts in sorted(more.items()):
        if "--write" in sys.argv:
            print(tool, name, check, len(texts), "?")
        for text in sorted(texts) if "--write" not in sys.argv else ():
            print(f"{tool}: {text} [{check}]")
    print(f"cppcheck read all, clang-tidy {count} files: {len(more)} kinds of findings that analysis.txt lacks",
          file=sys.stderr)
    return 1 if more else 0


sys.exit(main())
