#!/bin/sh
# Every fuzz target for a while, under ASan and UBSan: run.sh SECONDS [TARGET...]. Builds into build-fuzz, grows a corpus
# in build-fuzz/corpus (the seeds are read, never written), prints a table: executions, coverage, findings.
set -eu
cd "$(dirname "$0")/../.."
seconds=${1:?seconds a target}
shift
[ $# -gt 0 ] || set -- recipe safetensors idx hf_config handshake metrics
cmake --preset fuzz >/dev/null
cmake --build build-fuzz --target fuzzers
failed=0
echo "| target | executions | edges covered | corpus | findings |"
echo "|---|---|---|---|---|"
for target in "$@"; do
    corpus=build-fuzz/corpus/$target
    log=build-fuzz/$target.log
    mkdir -p "$corpus"
    found=0
    limit=65536
    [ "$target" != safetensors ] || limit=4096
    build-fuzz/tests/fuzz/fuzz_"$target" -max_total_time="$seconds" -max_len=$limit -timeout=10 -rss_limit_mb=3000 \
        -print_final_stats=1 -artifact_prefix="build-fuzz/$target-" "$corpus" "tests/fuzz/seeds/$target" \
        >"$log" 2>&1 || found=1
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    edges=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
    echo "| $target | $runs | $edges | $(find "$corpus" -type f | wc -l) | $found |"
    [ $found -eq 0 ] || { tail -n 30 "$log" >&2; failed=1; }
done
exit $failed
