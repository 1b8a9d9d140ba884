#!/usr/bin/env python3
"""Makes the lists of commands and options in the man page of `cairn` from what `cairn --help` prints, which comes from
the tables in client/ctl. Every command has to be described there by hand, too.

usage: usage.py ROOT BUILD [--check]    --check writes nothing, and exits with 1 if the page is not fresh
"""
import re
import subprocess
import sys
import textwrap
from pathlib import Path

MADE = "made by tests/tree/usage.py"
COLUMNS = 115
FEW = 5  # the page names the commands of an option that no more take


def help_of(build, *words):
    return subprocess.run([build / "bin/cairn", *words, "--help"], check=True, capture_output=True, text=True).stdout


def commands(text):
    """(noun and verb, arguments) of each."""
    for line in text.split("\n"):
        if line.startswith("  cairn "):
            words = line.split()[1:]
            count = next((i for i, word in enumerate(words) if not re.fullmatch("[a-z]+", word)), len(words))
            yield " ".join(words[:count]), " ".join(words[count:])


def options(text):
    """(option and its value, help) of each; where there is no room a blank stands between them."""
    lines = text[text.index("\noptions:\n"):].split("\n\n")[0].split("\n")[2:]
    value = r" [\[A-Z]\S*| [a-z0-9-]+(?:\|[\w-]+)+"
    for line in lines:
        yield re.match(rf"  (-o \S+|-q, --quiet|--help, --version|--[\w-]+(?:{value})?) +(.*)", line).groups()


def bold(text):
    return re.sub(r"(?<![\w-])(--[\w-]*|-[a-z])(?![\w-])", r"*\1*", text)


def lines_of(text, indent=""):
    """The text in lines of the page, none of which begins as a list or a table of scdoc does."""
    text = re.sub(r"\[\*--[\w-]+\* \S+\]", lambda one: one.group().replace(" ", "~"), text)  # stays on a line
    lines = textwrap.wrap(text, COLUMNS, break_long_words=False, break_on_hyphens=False)
    return ("\n" + indent).join(re.sub(r"^(?=[\[\]|])", r"\\", line.replace("~", " ")) for line in lines)


def synopsis(build):
    text, benches, made = help_of(build), [], []
    for words, arguments in commands(text):
        if words.startswith("bench "):
            benches.append(words.split()[1])
        else:
            made.append(lines_of(f"*cairn* [OPTIONS] *{words}* {bold(arguments)}".rstrip()))
    made.append(lines_of(f"*cairn bench* {'|'.join(f'*{verb}*' for verb in benches)} [OPTIONS]"))
    return "++\n".join(made) + "\n"


def option_list(build):
    found = {}
    for words, _ in commands(help_of(build)):
        if not words.startswith("bench "):  # the section BENCH has theirs
            for option, text in options(help_of(build, *words.split())):
                found.setdefault((option, text), []).append(words)
    order = [one for one in options(help_of(build)) if one in found]

    def row(option, text):
        of, text = found[option, text], text.replace("*", r"\*")
        text = f"{', '.join(f'*{words}*' for words in of)}: {text}" if len(of) <= FEW else text[0].upper() + text[1:]
        return f"{bold(option)}\n\t{lines_of(text, chr(9))}.\n"
    return "\n".join(row(*one) for one in order)


def main(root, build, check):
    page = root / "deploy/man/cairn.1.scd"
    was = page.read_text()
    parts = iter((synopsis(build), option_list(build)))
    now = re.sub(rf"(^; [^\n]*{MADE}[^\n]*\n\n?)(.*?)(^\n?; From here on by hand)",
                 lambda found: found.group(1) + next(parts) + found.group(3), was, flags=re.M | re.S)
    if next(parts, None) is not None:
        sys.exit(f"{page}: a mark \"{MADE}\" is missing")
    described = was[was.index("# DESCRIPTION"):was.index("# OPTIONS")]
    missing = [words for words, _ in commands(help_of(build)) if f"*{words}*" not in described]
    if missing:
        sys.exit(f"{page} does not describe: {', '.join(missing)}")
    if now == was:
        return 0
    if check:
        sys.exit(f"{page} is not what `cairn --help` says: tests/tree/usage.py ROOT BUILD makes it anew")
    page.write_text(now)
    print(f"{page}: made")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), "--check" in sys.argv[3:]))
