"""_c.py against cairn.h: a C program prints every size, offset and number, and they are compared."""

import ctypes
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from cairn import _c, errors
from runner import main

ROOT = Path(os.environ.get("CAIRN_SOURCE", Path(__file__).resolve().parents[3]))
HEADER = ROOT / "client" / "include" / "cairn.h"
CONSTANTS = {f"CAIRN_{name}": value for name, value in vars(_c).items() if re.fullmatch("[A-Z][A-Z0-9_]*", name)
             and isinstance(value, int) and name not in ("RANK_MAX",)}


def c_program() -> str:
    lines = []
    for name, struct in _c.STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        for field, *_ in struct._fields_:
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof(struct {name}, {field}));')
    for name in CONSTANTS:
        lines.append(f'printf("{name} %zu\\n", (size_t){name});')
    return "#include <cairn.h>\n#include <stdio.h>\nint main(void)\n{\n" + "\n".join(lines) + "\n}\n"


def run_c(text: str) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "layout.c", Path(folder) / "layout"
        source.write_text(text)
        subprocess.run([os.environ.get("CC", "cc"), "-std=c11", f"-I{HEADER.parent}", source, "-o", program],
                       check=True, timeout=60)
        out = subprocess.run([program], check=True, timeout=10, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in (line.split() for line in out.splitlines())}


class TheHeader(unittest.TestCase):
    def test_every_struct_has_the_layout_of_the_header(self):
        said = run_c(c_program())
        for name, struct in _c.STRUCTS.items():
            self.assertEqual(said[name], ctypes.sizeof(struct), name)
            for field, *_ in struct._fields_:
                self.assertEqual(said[f"{name}.{field}"], getattr(struct, field).offset, f"{name}.{field}")

    def test_every_number_is_that_of_the_header(self):
        said = run_c(c_program())
        for name, value in CONSTANTS.items():
            self.assertEqual(said[name], value, name)

    def test_every_struct_and_function_of_the_header_is_here(self):
        header = HEADER.read_text()
        structs = set(re.findall(r"^struct (cairn_\w+) \{", header, re.M))
        self.assertEqual(structs, set(_c.STRUCTS))
        functions = set(re.findall(r"^CAIRN_EXPORT [\w *]*?\b(cairn_\w+)\(", header, re.M))
        self.assertEqual(functions, set(_c.FUNCTIONS))

    def test_every_status_has_an_exception(self):
        statuses = dict(re.findall(r"^ +CAIRN_(OK|ERR_\w+) = (\d+)", HEADER.read_text(), re.M))
        numbers = {int(value) for value in statuses.values()} - {0}
        self.assertEqual(numbers, set(errors.BY_STATUS))
        self.assertEqual(len(errors.BY_STATUS), len(numbers))


if __name__ == "__main__":
    main()
