#!/usr/bin/env bash
# quickstart.sh MOEHOST RECIPE WORK: the first steps of the quickstart, with one layer and short rows, on devices cpu and cuda: the
# losses of every step are the same to 1e-4.
set -euo pipefail
moehost=$1 recipe=$2 work=$3
rm -rf "$work"
mkdir -p "$work"

losses_on() { # DEVICE: "STEP LOSS" a line
    "$moehost" run "$recipe" --out "$work/$1" --quiet --steps 3 --set device.plugin="$1" --set run.log_every=1 \
        --set run.eval_every=0 --set checkpoint.every=0 --set data.seq_len=16 --set model.layers=1 \
        --set batch.global=2 --set batch.micro=1 --set optimizer.warmup=0 >/dev/null
    sed -n 's/.*"step": *\([0-9]*\),.*"loss": *\([0-9.eE+-]*\).*/\1 \2/p' "$work/$1/metrics.jsonl"
}
losses_on cpu >"$work/cpu.txt"
losses_on cuda >"$work/cuda.txt"
paste -d ' ' "$work/cpu.txt" "$work/cuda.txt" | tee "$work/both.txt"
awk '{ d = $2 - $4; if ($1 != $3 || d > 1e-4 || d < -1e-4) exit 1; n++ } END { if (n != 3) exit 1 }' "$work/both.txt"
