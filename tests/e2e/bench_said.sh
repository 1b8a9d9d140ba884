# shellcheck shell=bash
# For the tests of cairn bench. Sourced by them; $1: the folder of the programs.
cairn=$1/cairn
fail() { echo "FAILED: $*"; exit 1; }

# of NAME ARGUMENTS...: its JSON has the fields, and figures that are above 0.
of() {
    local name=$1
    shift
    out=$("$cairn" bench "$@" --seconds 0.01 -o json) || fail "cairn bench $*"
    python3 - "$name" "$out" <<'PYTHON' || fail "cairn bench $*: $out"
import json, sys
name, result = sys.argv[1], json.loads(sys.argv[2])
assert result["bench"] == name and result["schema_version"] == 1
for figure in ("value", "reference", "ratio"):
    low, middle, high = (result[figure + end] for end in ("_min", "", "_max"))
    assert 0 < low <= middle <= high, figure
for word in ("unit", "reference_name"):
    assert isinstance(result[word], str) and result[word], word
for field in ("params", "parts", "machine"):
    assert isinstance(result[field], dict), field
assert result["runs"] >= (5 if name != "recover" else 1) and result["machine"]["cores"] >= 1
PYTHON
}
