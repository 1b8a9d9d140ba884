#!/usr/bin/env python3
"""Holds the tree against its own rules: who may include what, sizes, words, file manners, links that lead somewhere.

usage: tidy.py [ROOT]    prints FILE:LINE: what is wrong, and exits with 1 if anything is
"""
import os
import re
import subprocess
import sys
from pathlib import Path

SELF = "tests/tree/tidy.py"
FILE_LINES, FILE_LINES_NOTE, FUNCTION_LINES, FILE_BYTES = 1200, 1000, 70, 1 << 20
COLUMNS, COLUMNS_OF_SCRIPTS = 110, 120
# The one installed header stands alone: to split it would be its users' to put together again.
ONE_PIECE = {"client/include/cairn.h": 1420}
MADE_BY_A_SCRIPT = {"tests/golden/optim_golden.h", "tests/installed/libcairn.abi"}

# One door per library: a header, and the beginnings of the paths that may include it. tests/ may.
DOORS = {
    r"uc[pst]/.*": ["proto/fabric/ucx"],
    r"sqlite3\.h": ["server/coordinator/store.", "server/coordinator/store_shared.",
                   "server/coordinator/events."],
    r"uv\.h": ["proto/loop/", "server/base/", "server/shard/", "server/coordinator/", "client/"],
    r"sodium\.h": ["proto/geometry/layout.c", "proto/loop/address.c", "server/shard/join.c",
                   "server/shard/connection.c", "server/base/listener.c", "proto/spec/",
                   "proto/snapshot/", "proto/store/", "proto/snapshot_io/", "proto/wire/",
                   "proto/secure/", "proto/fabric/mapped", "proto/fabric/remote",
                   "proto/fabric/sealed", "client/", "server/coordinator/"],
    r"jansson\.h": ["proto/snapshot/", "proto/safetensors/", "client/ctl/", "server/coordinator/lead."],
    r"curl/.*": ["server/coordinator/etcd."],
    r"ini\.h": ["server/base/"],
    r"xxh\w*\.h": ["proto/base/", "proto/fabric/where.c"],
    r"zlib\.h": ["client/examples/", "client/ctl/torch.c"],
    r"protobuf-c/.*": ["proto/wire/"],
    r"check\.h": [],
}
# Dependencies run one way: a room, and the rooms it may include and call besides itself. The longest name wins.
# A folder that a room lies in is allowed without the other rooms in it. A name may be a file's, with "." for its .c
# and .h.
ROOMS = {
    "proto/base/": [],
    "proto/geometry/": ["proto/base/"],
    "proto/spec/": ["proto/base/", "proto/geometry/"],
    "proto/safetensors/": ["proto/base/", "proto/geometry/", "proto/spec/"],
    "proto/snapshot/": ["proto/base/", "proto/geometry/", "proto/spec/", "proto/safetensors/"],
    "proto/store/": ["proto/base/", "proto/geometry/", "proto/spec/", "proto/safetensors/", "proto/snapshot/"],
    "proto/snapshot_io/": ["proto/base/", "proto/geometry/", "proto/spec/", "proto/safetensors/", "proto/snapshot/",
                           "proto/store/"],
    "proto/plan/": ["proto/base/", "proto/geometry/", "proto/spec/"],
    "proto/wire/": ["proto/base/", "proto/geometry/", "proto/spec/"],
    "proto/secure/": ["proto/base/"],
    "proto/fabric/": ["proto/base/", "proto/wire/", "proto/secure/"],
    "proto/link/": ["proto/base/", "proto/wire/", "proto/fabric/"],
    "proto/loop/": ["proto/base/", "proto/wire/", "proto/fabric/", "proto/secure/"],
    "gpu/": ["proto/base/", "proto/geometry/", "proto/spec/", "proto/snapshot/digest_tree.h"],
    "server/core/": ["proto/base/", "proto/geometry/", "proto/spec/"],
    "server/base/": ["proto/"],
    "server/shard/": ["server/core/", "server/base/", "gpu/", "proto/"],
    "server/coordinator/": ["server/core/", "server/base/", "gpu/", "proto/"],
    "client/": ["proto/", "client/device."],
    "client/device.": ["proto/", "client/", "gpu/cuda/driver.h"],
    "client/ctl/": ["proto/", "client/include/", "client/env.h", "client/admin.h", "server/shard/need.h",
                    "server/core/decision.h"],
    "client/ctl/bench/": ["proto/", "client/include/", "gpu/gpu.h", "client/ctl/ctl.h"],
    "client/examples/": ["client/include/"],
}
# The headers of a large room, from the ground up: a header includes none of those behind it.
HEADERS = {
    "server/coordinator/": "access base store roster operations round reshard snapshot members tenants job "
                           "cluster mirror restore lead",
    "server/shard/": "need base memory kept_file journal_file collect kept journal journal_op read state part move "
                     "shard jobs relay",
    "client/": "base env admin layouts device op push read session job",
    "client/ctl/": "ctl snapshot",
}
BANNED_CALLS = re.compile(r"\b(strcpy|strcat|sprintf|vsprintf|gets|strtok|localtime|gmtime)\s*\(")
BANNED_NAMES = re.compile(r"\w*(Manager|Helper|Util)\w*|\w*_(manager|helper|utils?)\b|\b(manager|helper|utils?)_\w+")
INVERTED = re.compile(r"(Of|That|Those|What|By|But)\b")
# One file includes each of these: a kernel a file, and the one header that is installed.
ALONE = ("gpu/host/isa/", "gpu/kernel/", "client/include/cairn.h")
BANNED_WORDS = re.compile(r"\b(TODO|FIXME|XXX)\b")
FOREIGN_PATHS = re.compile(r"/work\b|\.library\b|shared/design")
INCLUDE = re.compile(r'\s*#\s*include\s+(["<])([^">]+)[">]')
LINK = re.compile(r"\]\(([^)#\s]*)#?([^)\s]*)\)")

SECTION = re.compile(r"^/\* (====|----) (.+?) (?:====|----) \*/$", re.M)

complaints = []
notes = []


def complain(path, line, text):
    complaints.append(f"{path}:{line}: {text}")


def tree_files(root):
    """Tracked files, and new ones that are not ignored; without git, every file."""
    git = ["git", "-c", "safe.directory=*", "-C", root, "ls-files", "-z", "-co", "--exclude-standard"]
    try:
        listed = subprocess.run(git, check=True, capture_output=True, text=True).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        listed = [str(p.relative_to(root)) for p in Path(root).rglob("*") if ".git" not in p.parts]
        listed = [path for path in listed if not path.startswith("build")]
    return sorted(p for p in set(listed) if p and os.path.isfile(os.path.join(root, p)))


def without_comments(text):
    """The same lines, with the text of comments and strings blanked."""
    blank = lambda m: re.sub(r"[^\n]", " ", m.group(0))
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', blank, text, flags=re.S)


def check_door(path, line, header):
    for door, owners in DOORS.items():
        if re.fullmatch(door, header) and not any(path.startswith(owner) for owner in owners):
            complain(path, line, f"<{header}> is included only by {', '.join(owners) or 'tests/'}")


def check_room(path, line, header):
    home = max((room for room in ROOMS if path.startswith(room)), key=len, default=None)
    target = max((room for room in ROOMS if header.startswith(room)), key=len, default=None)
    if home is None or target is None or home == target:
        return
    around = [room for room in ROOMS if home.startswith(room) and home != room]
    if not any(header.startswith(room) and (room == target or room not in around) for room in ROOMS[home]):
        complain(path, line, f"{home} does not include or call {target}")


def check_order(path, line, header):
    folder, name = os.path.split(path)
    order = HEADERS.get(folder + "/", "").split()
    if os.path.dirname(header) == folder and order and name.endswith(".h"):
        mine, other = os.path.splitext(name)[0], os.path.splitext(os.path.basename(header))[0]
        if mine not in order or other not in order:
            complain(path, line, f"{mine}.h or {other}.h has no place in the list of headers (HEADERS)")
        elif order.index(other) > order.index(mine):
            complain(path, line, f"{mine}.h includes {other}.h, which stands above it")


def check_includes(path, lines):
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if match:
            check_order(path, number, match.group(2))
        if match and not path.startswith("tests/"):
            check_door(path, number, match.group(2))
            check_room(path, number, match.group(2))


def declared_functions(root, files):
    """Each function that a header declares, and the header."""
    headers = {}
    for path in files:
        if path.endswith(".h") and not path.startswith(("tests/", "gpu/kernel/")):  # static there, by a macro
            text = without_comments(Path(root, path).read_text(encoding="utf-8"))
            names = re.findall(r"^[A-Za-z][\w *]*?\b([a-z]\w+)\(", text, re.M)
            headers.update((name, path) for name in names)
    return headers


def check_calls(path, text, headers):
    """A header that stands for a struct may come with another one: who is called counts, too."""
    bare = without_comments(text)
    own = set(re.findall(r"^static [\w *]*?\b(\w+)\(", bare, re.M))
    for number, line in enumerate(bare.split("\n"), 1):
        for name in re.findall(r"(?<![\w.>])(\w+)\(", line):
            if name in headers and name not in own and path != headers[name]:
                check_room(path, number, headers[name])


def check_sizes(path, lines):
    if path in MADE_BY_A_SCRIPT:
        return
    most = ONE_PIECE.get(path, FILE_LINES)
    if len(lines) > most and not path.startswith("tests/"):
        complain(path, len(lines), f"{len(lines)} lines, at most {most}: split it")
    elif len(lines) > FILE_LINES_NOTE:
        notes.append(f"{path}: {len(lines)} lines")
    begin = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            begin = number
        elif line == "}" and begin is not None:
            if number - begin > FUNCTION_LINES:
                complain(path, begin, f"a function of {number - begin} lines, at most {FUNCTION_LINES}")
            begin = None


def check_code(path, text):
    for number, line in enumerate(without_comments(text).split("\n"), 1):
        for pattern, why in ((BANNED_CALLS, "banned call"), (BANNED_NAMES, "a name that says nothing")):
            match = pattern.search(line)
            if match:
                complain(path, number, f"{why}: {match.group(0)}")


def check_manners(path, text, lines):
    columns = COLUMNS if path.endswith((".c", ".h", ".proto")) else COLUMNS_OF_SCRIPTS
    code = not path.endswith((".md", ".txt", ".sample")) or path.endswith("CMakeLists.txt")
    if text and not text.endswith("\n"):
        complain(path, len(lines), "the last line has no end")
    for number, line in enumerate(lines, 1):
        if "\t" in line and not path.endswith(".scd"):  # scdoc indents by tabs
            complain(path, number, "a tab")
        if code and len(line) > columns and path not in MADE_BY_A_SCRIPT:
            complain(path, number, f"{len(line)} columns, at most {columns}")
        if path == SELF:
            continue
        for pattern in (BANNED_WORDS, FOREIGN_PATHS):
            match = pattern.search(line)
            if match:
                complain(path, number, f"banned: {match.group(0)}")


def anchors(markdown):
    """What links to its headings are called, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", markdown, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_links(root, path, lines):
    for number, line in enumerate(lines, 1):
        for link, anchor in LINK.findall(line):
            target = Path(root, os.path.dirname(path), link) if link else Path(root, path)
            if "://" in link:
                continue
            if not target.exists():
                complain(path, number, f"a link to {link}, which is not there")
            elif anchor and anchor not in anchors(target.read_text(encoding="utf-8")):
                complain(path, number, f"a link to #{anchor}, no heading of {link or path}")


def check_comments(path, text):
    """A sentence has its subject first: the reader knows what is spoken of."""
    for match in re.finditer(r"/\*(.*?)\*/|(?:^[ \t]*//[^\n]*\n)+|//[^\n]*", text, re.S | re.M):
        comment = re.sub(r"\n\s*\*?|\n?\s*//", " ", match.group(1) or match.group(0))
        for sentence in re.split(r"(?<=[.:;?!])\s+", comment.strip()):
            sentence = sentence.strip(" -*=")
            if len(sentence.split()) >= 3 and INVERTED.match(sentence):
                complain(path, text.count("\n", 0, match.start()) + 1,
                         f"a sentence that begins with {sentence.split()[0]}: its subject comes first")


def check_sections(path, text):
    """A banner has something under it: what was moved away takes its section along."""
    banners = list(SECTION.finditer(text))
    for this, after in zip(banners, banners[1:] + [None]):
        if after is not None and (this[1], after[1]) == ("====", "----"):
            continue
        body = text[this.end():after.start() if after is not None else len(text)]
        body = re.sub(r"/\*.*?\*/|//[^\n]*", "", body, flags=re.S)
        if after is None:
            body = re.sub(r"^\s*#\s*endif\b.*$", "", body, flags=re.M)
        if not body.strip():
            complain(path, text.count("\n", 0, this.start()) + 1, f"a section of nothing: {this[2]}")


def check_used(root, files, headers):
    """What is public is used by another file, and a header by more than one."""
    texts = {path: Path(root, path).read_text(encoding="utf-8") for path in files
             if path.endswith((".c", ".h", ".cu", ".map")) and not path.startswith("tests/fuzz/corpus/")}
    words = {path: set(re.findall(r"\b[a-z]\w+", without_comments(text))) for path, text in texts.items()}
    users = {}
    for path, names in words.items():
        for name in names & headers.keys():
            users.setdefault(name, []).append(path)
    for name, header in headers.items():
        if re.search(rf"^static [^;{{]*\b{name}\(", texts[header], re.M):
            continue
        if len(users.get(name, [])) <= 2 and len(re.findall(rf"\b{name}\b", without_comments(texts[header]))) == 1:
            complain(header, 0, f"{name} is used by no other file: make it static")
    included = {}
    for path, text in texts.items():
        for header in set(re.findall(r'#\s*include "([^"]+)"', text)):
            included[header] = included.get(header, 0) + 1
    for path in texts:
        if path.endswith(".h") and not path.startswith("tests/") and included.get(path, 0) < 2 and \
                not path.startswith(ALONE):
            complain(path, 0, f"a header that {included.get(path, 0)} file includes: its text belongs there")


def check_file(root, path, headers):
    full = os.path.join(root, path)
    if os.path.getsize(full) > FILE_BYTES:
        complain(path, 0, f"{os.path.getsize(full)} bytes, at most {FILE_BYTES}")
        return
    if path.startswith("tests/fuzz/corpus/"):
        return  # what strangers send keeps no manners
    try:
        text = Path(full).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return  # a binary file, small
    lines = text.split("\n")[:-1] if text.endswith("\n") else text.split("\n")
    if text.startswith("#!") != os.access(full, os.X_OK):
        complain(path, 1, "a script is executable and begins with #!, nothing else does")
    check_manners(path, text, lines)
    if path.endswith(".md"):
        check_links(root, path, lines)
    if path.endswith((".c", ".h")):
        check_includes(path, lines)
        check_calls(path, text, headers)
        check_sizes(path, lines)
        check_code(path, text)
        if not path.startswith("tests/"):
            check_comments(path, text)
            check_sections(path, text)


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else str(Path(__file__).resolve().parents[2])
    files = tree_files(root)
    headers = declared_functions(root, files)
    for path in files:
        check_file(root, path, headers)
    check_used(root, files, headers)
    for note in notes:
        print("above %d lines: %s" % (FILE_LINES_NOTE, note))
    for complaint in complaints:
        print(complaint)
    print(f"{len(files)} files, {len(complaints)} complaints")
    return 1 if complaints or not files else 0


if __name__ == "__main__":
    sys.exit(main())
