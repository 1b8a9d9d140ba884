#!/usr/bin/env python3
"""tests/bench/compare on a small model: every figure of its JSON is there, its table has a line a row, and what cannot
run is said. Nothing of speed. usage: compare_quick.py FOLDER_OF_THE_PROGRAMS
"""

import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
import peer  # noqa: E402

COMPARE = Path(__file__).with_name("compare")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "CAIRN_TEST_TORCH_PYTHON"}


def compare(*arguments):
    return subprocess.run([sys.executable, COMPARE, "--bin", sys.argv[1], *arguments], env=ENVIRONMENT, text=True,
                          capture_output=True)


def rows_are_whole(result):
    assert result["bench"] == "compare" and result["machine"]["cores"] >= 1 and len(result["load"]) == 2
    assert len(result["rows"]) >= 9, "a row is missing"
    for row in result["rows"]:
        if row["verdict"] == "absent":
            assert row["why"] and "torch" in row["why"], row
            continue
        assert "why" not in row, row
        assert row["runs"] == result["params"]["rounds"], row
        for figure in ("cairn", "peer", "ratio"):
            assert 0 < row[figure]["min"] <= row[figure]["median"] <= row[figure]["max"], row
    measured = {(row["cairn_name"], row["peer_name"]) for row in result["rows"] if "ratio" in row}
    for name, other in (("adamw", "AdamW foreach"), ("step mapped f32", "ZeRO+gloo"), ("step ucx bf16", "ZeRO+gloo")):
        assert (name, other) in measured, f"{name} was not measured beside {other}"


def a_peer_prints_what_a_bench_prints():
    script = COMPARE.parent / "peers/adamw.py"
    sizes = ("--params", "100000", "--tensors", "2", "--runs", "3")
    done = subprocess.run(["/usr/bin/python3", script, *sizes], check=True, env=ENVIRONMENT, text=True,
                          stdout=subprocess.PIPE)
    result = json.loads(done.stdout)
    assert {"bench", "value", "value_min", "value_max", "unit", "runs", "params", "machine"} <= set(result), result
    assert result["unit"] == "s" and 0 < result["value_min"] <= result["value"] <= result["value_max"], result


def main():
    done = compare("--quick", "--rounds", "1", "-o", "json")
    if done.returncode == peer.ABSENT:
        print(done.stdout.strip())
        sys.exit(peer.ABSENT)
    assert done.returncode == 0, done.stdout + done.stderr
    rows_are_whole(json.loads(done.stdout))
    a_peer_prints_what_a_bench_prints()
    table = compare("--quick", "--rounds", "1", "--only", "adamw")
    assert table.returncode == 0, table.stdout + table.stderr
    for word in ("ratio", "target", "AdamW foreach", "machine: ", "nothing is said of the targets"):
        assert word in table.stdout, f"no {word} in {table.stdout}"
    broken = subprocess.run([sys.executable, COMPARE, "--bin", "/nonexistent"], text=True, capture_output=True)
    assert broken.returncode == 1 and "build it first" in broken.stderr, broken.stderr


if __name__ == "__main__":
    main()
