#!/usr/bin/env bash
# What tests/gpu/check says where something fails, with a GPU, programs and tools that are made up: scripts in a folder
# that it carries. test_faults.sh CHECK BUILD WORKDIR
set -euo pipefail
check=$1 work=$3
fail() {
    printf 'FAILED: %s\n' "$*" >&2
    exit 1
}
rm -rf "$work"
mkdir -p "$work"/{bin,cuda/bin,carry/plugins,carry/tests/gpu,carry/tests/oracle,tables}
script() { # script PATH < BODY
    { echo '#!/bin/sh'; cat; } >"$1"
    chmod +x "$1"
}

# ---- the made-up machine and build ----
script "$work/bin/nvidia-smi" <<'END'
echo "$FAKE_GPU"
END
script "$work/cuda/bin/nvcc" <<'END'
echo "Cuda compilation tools, release 13.0, V13.0.1"
END
script "$work/cuda/bin/compute-sanitizer" <<'END'
case "$2 $5" in
    "racecheck "*gpu_bench) exit 9 ;;
    "synccheck "*) sleep 60 ;;
esac
END
script "$work/carry/moehost" <<'END'
[ "$1" = run ] || { [ "$1" = generate ] && echo text; exit; }
while [ "$1" != --out ]; do shift; done
mkdir -p "$2" && echo "{\"step\":300,\"val_loss\":$FAKE_LOSS}" >"$2/metrics.jsonl"
END
script "$work/carry/tests/oracle/oracle_compare" </dev/null
script "$work/carry/tests/gpu/gpu_bench" <<'END'
[ "$1" != --list ] || { [ "$2" = memory ] && printf 'memory\tfirst\nmemory\tsecond\nmemory\tthird\n'; exit 0; }
[ "$1" = memory ] || exit 0
echo '{"part":"memory","row":"first","state":"measured","value":3.91234,"unit":"TB/s","fraction":0.9099,"of":"copy"}'
echo '{"part":"memory","row":"second","state":"failed","why":"said \"no\" | not"}'
exit 1
END
script "$work/carry/good" <<'END'
echo "100%: Checks: 3, Failures: 0, Errors: 0"
END
script "$work/carry/bad" <<'END'
echo "66%: Checks: 3, Failures: 1, Errors: 0"
echo "x.c:12:F:core:norm:0: 1 is not 2"
exit 1
END
script "$work/carry/empty" <<'END'
echo "100%: Checks: 0, Failures: 0, Errors: 0"
END
script "$work/carry/late" <<'END'
sleep 60
END
echo 'MOE_CUDA_ARCHITECTURES:STRING=90a' >"$work/carry/CMakeCache.txt"
script "$work/python" <<'END'
echo '{"part":"torch","row":"dense","state":"measured","value":712.5,"unit":"TFLOP/s"}'
END

# run CODE ARGUMENTS...: check there, with that exit code; its table is out.txt, what it says err.txt
export CUDA_HOME=$work/cuda PATH=$work/bin:$PATH FAKE_GPU="NVIDIA H200, 9.0, 570.1" FAKE_LOSS=2.31 PYTHON=$work/python
run() {
    local want=$1 code=0
    shift
    "$check" --carry "$work/carry" --work "$work/run" --out "$work/tables" --jobs 4 "$@" \
        >"$work/out.txt" 2>"$work/err.txt" || code=$?
    [ $code = "$want" ] || { cat "$work/out.txt" "$work/err.txt" >&2; fail "$*: exit code $code, not $want"; }
}
has() { # has LINE: of the table
    grep -qxF "$1" "$work/out.txt" || { cat "$work/out.txt" >&2; fail "no line: $1"; }
}
refuses() { # refuses WORDS: one line with them
    [ "$(wc -l <"$work/err.txt")" = 1 ] || { cat "$work/err.txt" >&2; fail "not one line"; }
    grep -qF -- "$1" "$work/err.txt" || { cat "$work/err.txt" >&2; fail "does not say: $1"; }
}

echo "- tests that pass, fail, check nothing or take too long; kinds of which there are none"
printf 'operation\tgood\tgood\noperation\tbad\tbad\ngradient\tempty\tempty\nconformance\tlate\tlate\n' \
    >"$work/carry/tests/gpu/tests.txt"
run 1 --seconds 5 --skip-quickstart --skip-measure --skip-torch --skip-sanitizer
has "| build | sm_90a | skipped |  | carried |"
has "| tests | operation | failed | 1 of 2 programs | 6 checks |"
has "| tests | bad | failed | exit code 1 | x.c:12:F:core:norm:0: 1 is not 2 |"
has "| tests | gradient | failed | 0 of 1 programs | 0 checks |"
has "| tests | conformance | out of time | 0 of 1 programs | 0 checks |"
grep -q '^| tests | parity_models | failed |' "$work/out.txt" || fail "parity holds of a host that does nothing"
has "| quickstart | - | skipped |  | --skip-quickstart |"
printf 'operation\tgood\tgood\n' >"$work/carry/tests/gpu/tests.txt"
run 1 --seconds 60 --skip-quickstart --skip-measure --skip-torch --skip-sanitizer
has "| tests | operation | passed | 1 of 1 programs | 3 checks |"
has "| tests | gradient | missing |  | no program of this kind is built |"

echo "- a loss above the limit, and below"
run 1 --skip-tests --skip-measure --skip-torch --skip-sanitizer
grep -q '^| quickstart | train recipes/quickstart.ini | failed | .* | validation loss 2.31, at most 2.2' "$work/out.txt" ||
    fail "2.31 passes"
FAKE_LOSS=2.19 run 0 --skip-tests --skip-measure --skip-torch --skip-sanitizer
has "| quickstart | generate | passed |  |  |"

echo "- rows that a measuring program gives, and those that it ends before"
run 1 --skip-tests --skip-quickstart --skip-sanitizer
has "| memory | first | measured | 3.91 TB/s | 91.0% of copy |"
has '| memory | second | failed |  | said "no" / not |'
grep -q '^| memory | third | failed |  | gpu_bench ended with exit code 1: ' "$work/out.txt" || fail "the third row is lost"
has "| torch | dense | measured | 712.5 TFLOP/s |  |"
grep -q '^| step | step.ini | failed ' "$work/out.txt" || fail "a step without figures passes"
PYTHON=$work/absent run 0 --skip-tests --skip-quickstart --skip-sanitizer --skip-measure
has "| torch | grouped_mm and plain layer | skipped |  | no PyTorch with CUDA here |"

echo "- what compute-sanitizer finds, and what takes too long under it"
run 1 --seconds 5 --skip-tests --skip-quickstart --skip-measure --skip-torch
has "| sanitizer | memcheck | passed | 1 of 1 programs |  |"
has "| sanitizer | racecheck | failed | 0 of 1 programs | gpu_bench: failed (9);  |"
has "| sanitizer | synccheck | out of time | 0 of 1 programs | gpu_bench: out of time (124);  |"
mv "$work/cuda/bin/compute-sanitizer" "$work/cuda/bin/other"
if ! command -v compute-sanitizer >/dev/null; then
    run 1 --skip-tests --skip-quickstart --skip-measure --skip-torch
    has "| sanitizer | memcheck, racecheck, synccheck | missing |  | no compute-sanitizer on PATH nor in CUDA_HOME |"
fi

echo "- the table's file: date and device"
[ -f "$work/tables/$(date +%Y-%m-%d)-nvidia-h200.md" ] || fail "$(ls "$work/tables")"
grep -q '^Driver 570.1, CUDA 13.0, commit ' "$work/out.txt" || fail "the heading"

echo "- what cannot begin says so in a line"
FAKE_GPU="Tesla V100, 7.0, 535" run 2
refuses "Tesla V100 has compute capability 7.0; want 9.0 or later"
FAKE_GPU="NVIDIA B200, 10.0, 570" run 2
refuses "is not built for sm_100a, which NVIDIA B200 is"
FAKE_GPU="No devices were found" run 2
refuses "nvidia-smi names no GPU: No devices were found"
run 2 --colour
refuses "unknown option --colour"
run 2 --seconds 0
refuses "--seconds 0: want"
run 2 --jobs
refuses "--jobs needs a value"
run 2 --carry "$work/absent"
refuses "no such folder"
run 2 --carry "$work/bin"
refuses "has no tests/gpu/tests.txt"
run 2 --pack "$work/packed"
refuses "not with --double or --carry"
run 0 --help
grep -q -- '--carry FOLDER' "$work/out.txt" || fail "no help"
echo "all held"
