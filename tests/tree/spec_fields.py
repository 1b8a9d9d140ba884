#!/usr/bin/env python3
"""Makes from the rows of proto/spec/spec_fields.h what repeats them elsewhere: the fields of JobSpec in control.proto,
those of struct cairn_job_spec in cairn.h with their comments, the options of `cairn job amend`, the mirror, the
dataclass and the docstring of the Python package, and the table of client/README.md.

usage: spec_fields.py ROOT [--check]    --check writes nothing, and exits with 1 if a part is not fresh
"""
import re
import sys
import textwrap
from pathlib import Path

MADE = "made by tests/tree/spec_fields.py"
# In cairn.h these have 64 bits: 32 would use bytes that are padding for older callers.
WIDE = {"skips_max": "uint64_t", "global_batch": "uint64_t"}
NOT_IN_C = {"spread"}  # no worker declares it
NOT_IN_PYTHON = {"loss_scale_growth_steps", "loss_scale_min", "loss_scale_max"}
IN_PYTHON = {"shard_loss_wait_s": "shard_loss_wait", "worker_loss_wait_s": "worker_loss_wait"}
PYTHON_WORDS = {"stage": "0 to 3, see cairn.torch", "loss_scale": "At the start of the job; 1 = none",
                "loss_scale_policy": "\"fixed\", \"dynamic\", or \"default\": dynamic if loss_scale is above 1"}
CHANGES = {"NEXT_ROUND": "an amendment, from the next round on", "REOPENED": "an amendment; handles are opened again",
           "CREATED": "a job made from a snapshot", "NEVER": "never"}


class Field:
    def __init__(self, row, words, member_types, limits):
        self.name, self.member, self.kind, self.allowed, self.default, self.part, self.given, self.change = row
        _, number, self.goes_with, self.option, self.unit, self.help, self.doc = words
        self.number = int(number)
        self.type = member_types[self.member.split(".")[-1]]
        self.public_type = WIDE.get(self.name, self.type)
        self.python = IN_PYTHON.get(self.name, self.name)
        listed = re.match(r"LISTED\((\w+)\)|BY_CODE_OF\((\w+)\)", self.allowed)
        self.words = (listed.group(1) or listed.group(2)) if listed and self.kind == "CHOICE" else None
        bounds = re.match(r"RANGE\((.*), ([^,]*)\)$", self.allowed)
        most = value_of(bounds.group(2), limits) if bounds and self.kind == "COUNT" else 0
        self.most = 2 ** 31 - 1 if self.type == "uint32_t" else max(most, 2 ** 31 - 1)
        least = value_of(bounds.group(1), limits) if bounds and self.kind == "COUNT" else 0
        self.zero = value_of(self.default, limits) if least > 0 else 0  # what 0 stands for

    def in_python(self):
        return self.name not in NOT_IN_C | NOT_IN_PYTHON


def value_of(text, limits):
    while re.search(r"CAIRN_\w+", text):
        text = re.sub(r"CAIRN_\w+", lambda name: limits[name.group()], text)
    text = re.sub(r"\(uint64_t\)|UINT32_MAX", lambda one: "" if one.group()[0] == "(" else str(2 ** 32 - 1), text)
    return int(eval(text, {"__builtins__": {}}, {}))  # numbers of our own header


def split(text):
    """The arguments of a macro: commas in brackets and strings do not count, and neighbouring strings are one."""
    parts, depth, quoted, at = [""], 0, False, 0
    while at < len(text):
        char = text[at]
        if char == "\\" and quoted:
            at += 1
            parts[-1] += text[at - 1]
            char = text[at]
        elif char == '"':
            quoted = not quoted
        elif not quoted:
            depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += char
        at += 1
    return ["".join(re.findall(r'"((?:[^"\\]|\\.)*)"', part)).replace('\\"', '"') if part.strip().startswith('"')
            else part.strip() for part in parts]


def rows(header, macro):
    body = header[header.index(f"#define {macro}(X)"):]
    body = body[body.index("\n"):]
    lines = []
    for line in body.split("\n")[1:]:
        lines.append(line.rstrip("\\").rstrip())
        if not line.endswith("\\"):
            break
    text, found, at = "\n".join(lines), [], 0
    while (at := text.find("X(", at)) >= 0:
        depth, end, quoted = 1, at + 2, False
        while depth > 0:
            quoted ^= text[end] == '"' and text[end - 1] != "\\"
            depth += 0 if quoted else {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        found.append(split(text[at + 2:end - 1]))
        at = end
    return found


def read(root):
    header, spec = ((root / f"proto/spec/{name}").read_text() for name in ("spec_fields.h", "spec.h"))
    plain = re.sub(r"/\*.*?\*/", "", spec, flags=re.S)
    limits = dict(re.findall(r"^#define (CAIRN_\w+)\s+(?:\\\s*)?(.+)$", plain, re.M))
    types = {}
    for struct in ("policy", "job_spec_data"):
        body = re.search(rf"^struct {struct} \{{(.*?)^\}};", plain, re.M | re.S).group(1)
        for type_, names in re.findall(r"^\s+(\w+) ([\w,\s]+);", body, re.M):
            types.update({name.strip(): type_ for name in names.split(",")})
    table = {row[0]: row for row in rows(header, "CAIRN_SPEC_FIELDS")}
    words = rows(header, "CAIRN_SPEC_WORDS")
    if sorted(table) != sorted(row[0] for row in words):
        sys.exit(f"spec_fields.h: only one of the tables has {set(table) ^ {row[0] for row in words}}")
    by_name = {row[0]: Field(table[row[0]], row, types, limits) for row in words}
    return [by_name[name] for name in table], list(by_name.values())


def comment(text, indent, end):
    """A comment of C, in lines of 100 columns."""
    lines = textwrap.wrap(text, 100 - len(indent) - 3 - len(end), break_on_hyphens=False, break_long_words=False)
    return f"{indent}/* " + f"\n{indent} * ".join(lines) + end


def of_proto(table, _):
    wire = {"uint64_t": "uint64", "double": "double", "bool": "bool"}
    return ["".join(f"  {wire.get(one.type, 'uint32')} {one.name} = {one.number};"
                    f"{f' // {one.type}' if one.kind == 'CHOICE' else ''}\n" for one in table)]


def blocks(by_place, first, last):
    names = [one.name for one in by_place]
    part = by_place[names.index(first):names.index(last) + 1 if last else None]
    return [one for one in part if one.name not in NOT_IN_C]


BLOCKS = (("workers_min", "micro_batches"), ("client_state_max", "workers_max"), ("offload_fraction", None))


def of_header(_, by_place):
    return ["".join(f"{comment(one.doc, '    ', ' */')}\n    {one.public_type} {one.name};\n"
                    for one in blocks(by_place, *block)) for block in BLOCKS]


def of_mirror(_, by_place):
    types = {"uint32_t": "c_uint32", "uint64_t": "c_uint64", "double": "c_double", "bool": "c_bool"}

    def lines(block):
        text = ", ".join(f'("{one.name}", {types.get(one.public_type, "c_int")})' for one in blocks(by_place, *block))
        return textwrap.indent("\n".join(textwrap.wrap(text.replace('", c', '",~c'), 100)).replace("~", " "),
                               " " * 16) + ",\n"
    return [lines(block) for block in BLOCKS]


def in_words(doc):
    """A comment of cairn.h, as the Python package says it."""
    doc = re.sub(r"CAIRN_ERR_(\w+)", lambda one: "".join(part.capitalize() for part in one.group(1).split("_")), doc)
    kinds = "NONFINITE|LOSS_SCALE|GROUPS|SHARD_LOSS|WORKER_LOSS|SNAPSHOT_STAGING|DURABILITY|TIERS|MISSING"
    return re.sub(rf"CAIRN_(?:{kinds})_([A-Z_]+)", lambda one: '"' + one.group(1).lower().replace("_", "-") + '"', doc)


def python_default(one):
    if one.kind == "CHOICE":
        return f'"{one.default.rpartition("_")[2].lower()}"' if one.default != "0" else '"default"'
    if one.kind == "FLAG":
        return "False"
    if one.kind == "REAL":
        return repr(float(one.default))
    return one.default if one.part in ("FIRST", "MICRO") and one.default in ("1", "2") else "0"


def of_python(table, by_place):
    mine = [one for one in by_place if one.in_python()]
    types = {"CHOICE": "str", "FLAG": "bool", "REAL": "float", "COUNT": "int"}
    docs = "".join("\n".join(textwrap.wrap(f"`{one.python}`: {PYTHON_WORDS.get(one.name, in_words(one.doc))}", 119,
                                           initial_indent="    ", subsequent_indent="        ",
                                           break_on_hyphens=False)) + "\n" for one in mine)
    members = "".join(f"    {one.python}: {'Optional[float]' if one.name == 'clip_norm' else types[one.kind]} = "
                      f"{python_default(one)}\n" for one in mine)
    fields = "".join(f"    Field({one.python!r}, {one.name!r}, {one.kind.lower()!r}, {one.words or ''!r}, {one.most}, "
                     f"{one.zero}, {IN_PYTHON.get(one.goes_with, one.goes_with)!r}, "
                     f"{one.member.startswith('policy.')}),\n" for one in table if one.in_python())
    return [docs, members, fields.replace("'", '"')]


def amendable(table):
    """Those with an option: words that begin alike stand together, and what goes with a choice behind it."""
    having = [one for one in table if one.option]
    heads = list(dict.fromkeys(one.option.split("-")[0] for one in having if not nests(one, having)))
    ordered = [one for head in heads for one in having
               if not nests(one, having) and one.option.split("-")[0] == head]
    return [(one, [more for more in having if nests(more, having) and more.goes_with == one.name]) for one in ordered]


def nests(one, having):
    return any(head.name == one.goes_with and head.kind == "CHOICE" for head in having)


def of_options(table, _):
    def row(one):
        how = "BY(parse_every)" if one.unit == "N|TIME" else f"SETS({one.name})"
        head = f'    {{ "{one.option}", "{one.unit}", {how},'
        if len(head) + len(one.help) + 6 <= 100:
            return f'{head} "{one.help}" }},\n'
        lines = textwrap.wrap(one.help, 88, break_on_hyphens=False)
        text = " \"\n      \"".join(lines)
        return f'{head}\n      "{text}" }},\n'
    return ["".join(row(head) + "".join(map(row, more)) for head, more in amendable(table))]


def of_usage(table, _):
    words = [f"[--{head.option} {head.unit}" + "".join(f" [--{one.option} {one.unit}]" for one in more) + "] "
             for head, more in amendable(table)]
    lines = textwrap.wrap("".join(words), 90, break_on_hyphens=False, break_long_words=False)
    return ["".join(f'      "{line} "\n' for line in lines)]


def of_readme(table, _):
    text = "| scalar of the spec | default | changed by | option of `cairn job amend` |\n|---|---|---|---|\n"
    for one in table:
        default = {"FLAG": "no", "REAL": one.default}.get(one.kind) or one.zero or python_default(one).strip('"')
        option = f"`--{one.option} {one.unit}`".replace("|", "\\|") if one.option else f"`--set {one.name}=…`"
        text += f"| `{one.name}` | {default} | {CHANGES[one.change]} | " \
                f"{option if one.change in ('NEXT_ROUND', 'REOPENED') else ''} |\n"
    return [text]


PARTS = {"proto/wire/control.proto": of_proto, "client/include/cairn.h": of_header,
         "client/python/cairn/_c.py": of_mirror, "client/python/cairn/spec.py": of_python,
         "client/ctl/options.c": of_options, "client/ctl/main.c": of_usage, "client/README.md": of_readme}


def main(root, check):
    table, by_place = read(root)
    stale = []
    for name, make in PARTS.items():
        path = root / name
        was = path.read_text()
        parts = iter(make(table, by_place))
        # From the line after the mark to the line that says "by hand".
        now = re.sub(rf"(^[^\n]*{MADE}[^\n]*\n)(.*?)(^[^\n]*\bby hand\b[^\n]*$)",
                     lambda found: found.group(1) + next(parts) + found.group(3), was, flags=re.M | re.S)
        if next(parts, None) is not None:
            sys.exit(f"{name}: a mark \"{MADE}\" is missing")
        if now == was:
            continue
        stale.append(name)
        if not check:
            path.write_text(now)
    if stale:
        print("\n".join(f"{name}: {'is not what spec_fields.h says' if check else 'made'}" for name in stale))
    return bool(stale) and check


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), "--check" in sys.argv[2:]))
