#!/bin/sh
# Imports every golden model and evaluates every case of it, compares with the reference, prints the parity table.
# parity.sh MOEHOST COMPARE GOLDEN WORKDIR [--update README]   Exit code 1: a case failed; all are tried.
# --update: and writes the table between the two parity marks of README, if every case held.
# On device MOE_TEST_DEVICE (cpu), and on two ranks where it takes so many: MOE_TEST_RANKS (of cpu 2, else 1).
set -eu
moehost=$1
compare=$2
golden=$3
work=$4
readme=
[ "${5:-}" != --update ] || readme=$6
rm -rf "$work"
mkdir -p "$work"
device=${MOE_TEST_DEVICE:-cpu}
ranks=${MOE_TEST_RANKS:-1}
[ "$device" != cpu ] || ranks=2
comm=threads
[ "$device" != cuda ] || comm=nccl-threads
table=$work/table.md
errors=$work/errors.txt
failed=0

# lost MODEL CASE WHAT: a case that gave no figures; its last command's output is in errors.txt
lost() {
    echo "| $1 | $2 | $3 | | | | | | | FAILED |" >>"$table"
    sed "s/^/$1 $2: /" "$errors" >&2
    failed=1
}

cat >"$table" <<'END'
| model | case | loss | logits | router logits | wrong choices | weights | gradients | tensors | |
|---|---|---|---|---|---|---|---|---|---|
END
for config in "$golden"/*/config.json; do
    folder=$(dirname "$config")
    model=$(basename "$folder")
    mkdir "$work/$model"
    recipe=$work/$model/recipe.ini
    "$moehost" import "$folder" -o "$recipe" >"$errors" 2>&1 || { lost "$model" - "import failed"; continue; }
    for in in "$folder"/*.in.safetensors; do
        name=$(basename "$in" .in.safetensors)
        dump=$work/$model/$name.safetensors
        "$moehost" eval "$recipe" --in "$in" --dump "$dump" --grads --set device.plugin="$device" >"$errors" 2>&1 ||
            { lost "$model" "$name" "eval failed"; continue; }
        code=0
        "$compare" "$model" "$name" "$in" "$folder/$name.out.safetensors" "$dump" >"$work/row" 2>"$errors" || code=$?
        cat "$work/row" >>"$table"
        # two ranks compute the same
        if [ $code -eq 0 ] && [ "$name" = plain ] && [ "$ranks" -ge 2 ]; then
            if ! "$moehost" eval "$recipe" --in "$in" --dump "$dump" --grads --set device.plugin="$device" \
                --set comm.plugin=$comm --set comm.ranks=2 >"$errors" 2>&1 ||
                ! "$compare" "$model" "$name" "$in" "$folder/$name.out.safetensors" "$dump" >"$work/row" 2>"$errors"; then
                lost "$model" "$name" "not so on two ranks"
            fi
        fi
        [ $code -ne 0 ] || continue
        sed "s/^/$model $name: /" "$errors" >&2
        failed=1
        [ -s "$work/row" ] || lost "$model" "$name" "compare failed"
    done
done
cat "$table"
[ $failed -eq 0 ] || { echo "parity FAILED" >&2; exit 1; }

[ -n "$readme" ] || exit 0
[ "$(grep -c '^<!-- parity \(begin\|end\) -->$' "$readme")" = 2 ] || { echo "$readme has no parity marks" >&2; exit 1; }
awk -v table="$table" '
    /^<!-- parity begin -->$/ { print; while ((getline line < table) > 0) print line; skip = 1 }
    /^<!-- parity end -->$/ { skip = 0 }
    !skip { print }' "$readme" >"$work/README.md"
cp "$work/README.md" "$readme"
