#!/usr/bin/env bash
# mesh.sh MOEHOST TOOLS WORK [STRIDE]: the same model under many meshes, dispatchers and rooms for rows - every gradient
# within 1e-5 of one rank's, 20 steps of SGD and of AdamW with the same losses, and a repeated run the same bytes. One
# table line a mesh. STRIDE n: every n-th combination only (slow builds).
set -euo pipefail
moehost=$1 tools=$2 work=$3 stride=${4:-1}
here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$work"
mkdir -p "$work"
cp "$here/mesh.ini" "$work/mesh.ini"
for i in $(seq 1 400); do echo "line $i of a text that $((i * i % 97)) readers have in common"; done >"$work/text.txt"
cd "$work"
"$tools/put_tokens" tokens.safetensors 24 8 256 0

# ranks tp ep etp; dp takes the rest
meshes=("2 1 1 1" "2 2 1 1" "2 1 2 1" "2 2 2 1" "2 1 1 2" "2 2 1 2" "3 1 1 1" "4 1 2 1" "4 1 4 1" "4 2 1 1" "4 2 2 1"
    "4 2 4 1" "4 4 1 1" "4 4 4 1" "4 4 2 2" "4 1 2 2" "4 2 2 2" "4 1 1 4" "6 2 2 1" "8 1 1 1" "8 1 8 1" "8 2 8 1"
    "8 2 4 1" "8 4 8 1" "8 4 2 2" "8 2 4 2" "8 1 2 4" "8 2 2 1")
failed=0 compared=0 number=0

eval_mesh() { # out ranks tp ep etp dispatcher recv
    "$moehost" eval mesh.ini --in tokens.safetensors --dump "$1" --grads --with-aux --set comm.ranks="$2" \
        --set parallel.tp="$3" --set parallel.ep="$4" --set parallel.etp="$5" --set dispatcher.plugin="$6" \
        --set memory.recv="$7" --set parallel.node_size=2 --set device.threads=1 >/dev/null 2>eval.log || {
        cat eval.log >&2
        return 1
    }
}
losses() { sed -n 's/.*"loss": *\([^,}]*\).*/\1/p' "$1/metrics.jsonl"; }
run_mesh() { # out ranks tp ep etp dispatcher kind
    "$moehost" run mesh.ini --out "$1" --overwrite --quiet --set comm.ranks="$2" --set parallel.tp="$3" \
        --set parallel.ep="$4" --set parallel.etp="$5" --set dispatcher.plugin="$6" --set optimizer.kind="$7" \
        --set parallel.node_size=2 --set device.threads=1 >/dev/null
}
fail() {
    echo "FAILED: $*"
    failed=$((failed + 1))
}

eval_mesh one.safetensors 1 1 1 1 local exact
for kind in sgd adamw; do run_mesh "one-$kind" 1 1 1 1 local "$kind" && losses "one-$kind" >"one-$kind.txt"; done
for mesh in "${meshes[@]}"; do
    read -r ranks tp ep etp <<<"$mesh"
    if [ $((ep * etp)) = 1 ]; then dispatchers=local; else dispatchers="allgather alltoall deepep hier"; fi
    worst=0
    for dispatcher in $dispatchers; do
        for recv in exact worst capacity:8; do
            number=$((number + 1))
            [ $((number % stride)) = 0 ] || continue
            compared=$((compared + 1))
            if ! eval_mesh many.safetensors "$ranks" "$tp" "$ep" "$etp" "$dispatcher" "$recv"; then
                fail "$mesh $dispatcher $recv"
                continue
            fi
            error=$("$tools/same_dump" one.safetensors many.safetensors 1e-5) || fail "$mesh $dispatcher $recv: $error"
            worst=$(awk -v a="$worst" -v b="$error" 'BEGIN { print (b > a) ? b : a }')
        done
    done
    printf 'ranks %s tp %s ep %s etp %s: largest difference %s\n' "$ranks" "$tp" "$ep" "$etp" "$worst"
done

# training: losses of every step within 1e-5 under every mesh, dispatchers in turn, and the same bytes again
turn=0
for mesh in "${meshes[@]}"; do
    read -r ranks tp ep etp <<<"$mesh"
    names=(allgather alltoall deepep hier)
    dispatcher=${names[$((turn % 4))]}
    if [ $((ep * etp)) = 1 ]; then dispatcher=local; else turn=$((turn + 1)); fi
    for kind in sgd adamw; do
        number=$((number + 1))
        [ $((number % stride)) = 0 ] || continue
        run_mesh many "$ranks" "$tp" "$ep" "$etp" "$dispatcher" "$kind" || fail "run $mesh $dispatcher $kind"
        losses many | paste "one-$kind.txt" - |
            awk '{ d = $1 - $2; if (d < 0) d = -d; if (!(d <= 1e-5 * $1)) exit 1 } END { if (NR != 20) exit 1 }' ||
            fail "losses of $mesh $dispatcher $kind"
        [ "$kind" = adamw ] || continue
        for file in model optimizer; do cp "many/ckpt/step-00000020/$file.safetensors" "first-$file.safetensors"; done
        run_mesh many "$ranks" "$tp" "$ep" "$etp" "$dispatcher" "$kind" || fail "run $mesh $dispatcher $kind"
        for file in model optimizer; do
            cmp -s "many/ckpt/step-00000020/$file.safetensors" "first-$file.safetensors" ||
                fail "$mesh $dispatcher $kind: not the same bytes again"
        done
    done
done
echo "$compared dumps compared, $failed failed"
[ "$failed" = 0 ] && [ "$compared" -gt 0 ]
