"""The table "What a user may change after attach" of README.md, and the scenes that show its rows: a test of each row
is marked @scene("the row's first cell")."""

import re
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEADING = "## What a user may change after attach"


def scene(row: str):
    """What the test shows."""
    def mark(test):
        test.row = row
        return test
    return mark


def rows() -> list:
    """The first cells."""
    readme = (HERE.parent / "README.md").read_text()
    section = readme.split(f"\n{HEADING}\n", 1)[1].split("\n## ", 1)[0]
    return [line.split(" | ")[0].lstrip("| ") for line in section.splitlines() if line.startswith("| ")][1:]


def shown() -> list:
    """The rows that tests show."""
    return [row for test in sorted(HERE.glob("test_*.py"))
            for row in re.findall(r'@scene\("(.*)"\)$', test.read_text(), re.M)]


class Table(unittest.TestCase):
    def test_every_row_has_its_scene_and_every_scene_its_row(self):
        self.assertGreater(len(rows()), 10)
        self.assertEqual(sorted(set(rows()) - set(shown())), [], "rows of the README that no test shows")
        self.assertEqual(sorted(set(shown()) - set(rows())), [], "scenes of rows that the README has not")
