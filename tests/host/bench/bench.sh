#!/bin/sh
# moehost bench as a user runs it, on a tiny recipe, and that check accepts the recipes of recipes/bench.
# bench.sh MOEHOST WORKDIR SOURCE
# shellcheck disable=SC2016 # awk has its own $1
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
moehost=$1
work=$2/work
source=$3
rm -rf "$work"
mkdir -p "$work"
cd "$work"
# shellcheck source=tests/host/expect.sh
. "$here/expect.sh"

cat >tiny.ini <<'END'
[data]
seq_len = 16
[model]
layers = 1
hidden = 32
heads = 4
kv_heads = 2
qk_norm = head
experts = 4
top_k = 2
expert_ffn = 32
[batch]
global = 2
micro = 2
END
{
    cat tiny.ini
    printf '[precision]\nplugin = bf16\n'
} >half.ini

# value FIELD NAME RECIPE THREADS: a number of an object of out.txt
value() {
    sed -n "s/^{\"name\":\"$2\",.*\"$1\":\\([-0-9.e+]*\\).*,\"recipe\":\"$3\",\"threads\":$4}\$/\\1/p" out.txt
}
# holds NUMBERS CONDITION: awk's opinion, with the numbers as $1, $2 ...
holds() { echo "$1" | awk "{ exit !($2) }"; }

echo "- every row, as one JSON object a line, for each recipe"
expect 0 "$moehost" bench tiny.ini half.ini --threads 1 --steps 1 --runs 1 --json
grep -Evq '^\{"name":"[a-z0-9_.]+","value":[0-9.e+-]+,"unit":"[A-Za-z/%]+"(,"peak":[0-9.e+-]+,"fraction":[0-9.]+)?,"recipe":"[a-z]+\.ini","threads":1\}$' out.txt &&
    { cat out.txt; fail "a line is no such object"; }
rows="peak step step.time step_with_optimizer step_with_optimizer.time tokens moe.overhead memory.weights memory.params
    memory.arena projections attention experts head experts.fprop experts.dgrad experts.wgrad cross_entropy norms rope
    update experts.vs_first"
for part in projections attention routing experts activation head cross_entropy norms rope embedding update other; do
    rows="$rows $part.time"
done
grep -q '"name":"copy"' out.txt && rows="$rows copy copy.streaming"
grep -q '"name":"fma"' out.txt && rows="$rows fma"
n=0
for name in $rows; do
    n=$((n + 2))
    for recipe in tiny.ini half.ini; do
        [ "$(value value "$name" $recipe 1 | wc -l)" = 1 ] || fail "$recipe: not one row $name"
    done
done
[ "$(wc -l <out.txt)" = $n ] || { cat out.txt; fail "$(wc -l <out.txt) rows, not $n"; }

echo "- fractions are of the peak of the same run"
for name in step step_with_optimizer experts experts.dgrad norms head.time; do
    if [ "$name" = norms ] && [ -z "$(value value copy tiny.ini 1)" ]; then continue; fi
    figures="$(value value $name tiny.ini 1) $(value peak $name tiny.ini 1) $(value fraction $name tiny.ini 1)"
    holds "$figures" '$1 / $2 - $3 < 1e-4 && $3 - $1 / $2 < 1e-4' || fail "$name: $figures"
done
[ "$(value peak step tiny.ini 1)" = "$(value value peak tiny.ini 1)" ] || fail "the step has another peak"
[ "$(value peak experts.time tiny.ini 1)" = "$(value value step.time tiny.ini 1)" ] || fail "a part has another step"
[ "$(value peak update.time tiny.ini 1)" = "$(value value step_with_optimizer.time tiny.ini 1)" ] ||
    fail "the update is of another step"
sum=$(grep '\.time".*"recipe":"tiny.ini"' out.txt | grep -v 'step\|update' | sed 's/.*"value":\([0-9.e+-]*\).*/\1/' |
    awk '{ s += $1 } END { print s }')
holds "$sum $(value value step.time tiny.ini 1)" '$1 > 0 && $1 <= $2' || fail "the parts take $sum ms, more than the step"

echo "- beside the first recipe, and the bytes of memory"
[ "$(value value experts.vs_first tiny.ini 1)" = 100 ] || fail "the first is not what it is itself"
figures="$(value value experts half.ini 1) $(value value experts tiny.ini 1) $(value value experts.vs_first half.ini 1)"
holds "$figures" '100 * $1 / $2 / $3 > 0.999 && 100 * $1 / $2 / $3 < 1.001' || fail "vs first: $figures"
figures="$(value value memory.weights half.ini 1) $(value value memory.weights tiny.ini 1)"
holds "$figures" '$1 < 0.6 * $2 && $1 > 0.4 * $2' || fail "BF16 weights are not half as many bytes: $figures"

echo "- two recipes with two numbers of threads give four tables and a summary"
expect 0 "$moehost" bench tiny.ini half.ini --threads 1,2 --steps 1 --runs 1
grep -q '^tiny.ini, 1 thread (.*): medians of 1 run of 1 step$' out.txt || { cat out.txt; fail "no heading"; }
grep -q '^half.ini, 2 threads (.*): ' out.txt || fail "no second heading"
[ "$(grep -c '^  step  *[0-9.]* GFLOP/s  *[0-9.]*% of [0-9.]*$' out.txt)" = 4 ] || { cat out.txt; fail "not four tables"; }
[ "$(sed -n '/^recipe /,$p' out.txt | wc -l)" = 5 ] || { cat out.txt; fail "not a title and four lines"; }
for threads in 1 2; do
    grep -q "^tiny.ini  *$threads  *[0-9.]*%.* 100.0%\$" out.txt || { cat out.txt; fail "the first recipe's line"; }
    grep -q "^half.ini  *$threads  *[0-9.]*%.*%\$" out.txt || { cat out.txt; fail "the second recipe's line"; }
done
[ "$(cat err.txt)" = "bench 1/4: tiny.ini, 1 thread, run 1 of 1
bench 2/4: tiny.ini, 2 threads, run 1 of 1
bench 3/4: half.ini, 1 thread, run 1 of 1
bench 4/4: half.ini, 2 threads, run 1 of 1" ] || { cat err.txt >&2; fail "the progress"; }

echo "- what cannot be is refused before anything runs"
for list in '' ',' '1,' ',1' '1,,2' 0 -1 1.5 two '1;2' 1025 '1,1' '1 2' 99999999999999999999; do
    expect 2 "$moehost" bench tiny.ini "--threads=$list"
    [ "$(wc -l <err.txt)" = 1 ] || fail "--threads '$list': more than one line"
    grep -q '^moehost bench: --threads: ' err.txt || { cat err.txt >&2; fail "--threads '$list': no reason"; }
done
expect 2 "$moehost" bench
grep -q 'RECIPE.* is missing' err.txt || fail "no recipe: no reason"
expect 2 "$moehost" bench tiny.ini absent.ini --threads 1
grep -q 'absent.ini' err.txt || fail "the unreadable recipe is not named"
grep -q '^bench' err.txt && fail "something ran before"
expect 2 "$moehost" bench tiny.ini --runs 0
expect 2 "$moehost" bench tiny.ini --threads 1 --set device.threads=2
grep -q 'twice' err.txt || fail "--threads and its --set: no reason"
expect 2 "$moehost" bench half.ini tiny.ini --set memory.limit=1MiB
grep -q '^moehost: half.ini: .*memory' err.txt || { cat err.txt >&2; fail "the recipe that cannot be built is not named"; }

echo "- SIGINT ends it cleanly"
code=0
env --default-signal=INT "$moehost" bench tiny.ini --steps 100000 --runs 9 >out.txt 2>err.txt &
pid=$!
n=0
until grep -q '^bench 1/9' err.txt; do
    n=$((n + 1))
    [ $n -lt 600 ] || fail "no beginning within a minute"
    sleep 0.1
done
kill -s INT $pid
(sleep 60 && kill -s KILL $pid) >/dev/null 2>&1 & # one that does not listen does not stay
guard=$!
wait $pid || code=$?
kill $guard 2>/dev/null || true
[ "$code" = 130 ] || { cat err.txt >&2; fail "exit code $code, not 130"; }
grep -q '^moehost: stopped by SIGINT after 0 whole rounds of 9$' err.txt || { cat err.txt >&2; fail "it does not say so"; }
[ ! -s out.txt ] || fail "figures of no run"

echo "- check accepts the recipes that are there"
i=0
while [ $i -lt 2000 ]; do
    echo "the quick brown fox number $i jumps over the lazy dog"
    i=$((i + 1))
done >text.txt
for recipe in "$source"/recipes/bench/*.ini; do
    expect 0 "$moehost" check "$recipe" --set "data.train=$PWD/text.txt"
    head -n 1 "$recipe" | grep -q '^; ' || fail "$recipe does not say what it is"
done
echo "all held"
