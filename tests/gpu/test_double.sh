#!/usr/bin/env bash
# tests/gpu/check --double: it passes, and its table has every row, none of a failure, and no figure.
# test_double.sh CHECK BUILD WORKDIR
set -euo pipefail
check=$1 build=$2 work=$3
fail() {
    printf 'FAILED: %s\n' "$*" >&2
    exit 1
}
rm -rf "$work"
mkdir -p "$work"

code=0
"$check" --double --carry "$build" --work "$work" --out "$work/tables" --jobs 2 >"$work/out.txt" 2>"$work/err.txt" || code=$?
cat "$work/out.txt"
table=$(find "$work/tables" -name "$(date +%Y)-*-cpu-double.md")
[ -f "$table" ] || { cat "$work/err.txt" >&2; fail "no table"; }

echo "- its form: five cells a row, a result that there is"
grep -q '^| part | what | result | figure | |$' "$table" || fail "no heading"
grep '^|' "$table" | tail -n +3 >"$work/rows.md"
if grep -vE '^\| [a-z]+ \| [^|]+ \| (passed|measured|not measured|skipped|failed|missing|out of time) \| [^|]* \| [^|]* \|$' \
    "$work/rows.md"; then
    fail "a row is none"
fi

echo "- every row is there, once"
{
    printf 'build\tsm_cpu\n'
    printf 'tests\t%s\n' operation gradient conformance parity
    printf 'quickstart\t%s\n' "train recipes/quickstart.ini" generate
    "$build/tests/gpu/gpu_bench" --list
    printf 'step\t%s\n' "step.ini, forward and backward" "step.ini, with AdamW"
    printf 'torch\tgrouped_mm and plain layer\nsanitizer\tmemcheck, racecheck, synccheck\n'
} | sort >"$work/want.txt"
sed -E 's/^\| ([a-z]+) \| ([^|]+) \| .*/\1\t\2/' "$work/rows.md" | sort >"$work/got.txt"
diff "$work/want.txt" "$work/got.txt" || fail "other rows (<: missing, >: not expected)"

echo "- none of a failure, and no figure of what was not measured"
if grep -E '\| (failed|missing|out of time) \|' "$work/rows.md"; then fail "these have not passed"; fi
if grep -E '\| (measured|not measured) \| [^ |]' "$work/rows.md"; then fail "a figure of the double"; fi
[ "$(grep -c '| passed |' "$work/rows.md")" = 6 ] || fail "not six stages have passed"
[ $code = 0 ] || fail "exit code $code"
