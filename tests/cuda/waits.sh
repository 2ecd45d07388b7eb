#!/usr/bin/env bash
# waits.sh MOEHOST RECIPE WORK: how often the host waits for the GPU in a step: once, at its end; with recv = exact once
# more in every MoE layer of every microbatch. Counted by the double (MOE_DOUBLE_WAITS), as the difference between runs
# of 2 and of 4 steps.
set -euo pipefail
moehost=$1 recipe=$2 work=$3
rm -rf "$work"
mkdir -p "$work"
for i in $(seq 1 400); do echo "line $i of a text that $((i * i % 97)) readers have in common"; done >"$work/text.txt"
cp "$recipe" "$work/recipe.ini" # 5 MoE layers
cd "$work"

waits_of() { # RECV STEPS
    MOE_DOUBLE_WAITS=waits "$moehost" run recipe.ini --out run --overwrite --quiet --set device.plugin=cuda \
        --set memory.recv="$1" --set checkpoint.every=0 --set batch.global=2 --set batch.micro=1 --steps "$2" >/dev/null
    cat waits
}
failed=0
for case in "exact 11" "worst 1" "capacity:8 1"; do
    read -r recv want <<<"$case"
    two=$(waits_of "$recv" 2)
    four=$(waits_of "$recv" 4)
    echo "recv = $recv: $((four - two)) waits in two steps, want $((2 * want))"
    [ $((four - two)) = $((2 * want)) ] || failed=1
done
exit $failed
