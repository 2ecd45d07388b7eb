#!/bin/sh
# Tests parity.sh with a program in moehost's place that hands out the goldens themselves: every case must hold, the
# table must reach the README, and each way to fail must be noticed. parity_driver.sh COMPARE SOURCE WORKDIR
set -eu
compare=$1
source=$2
work=$3/driver
rm -rf "$work"
mkdir -p "$work"
cd "$work"

fail() {
    echo "FAILED: $*" >&2
    cat out.txt err.txt >&2
    exit 1
}
# parity CODE [ARG]...: runs the driver, output in out.txt and err.txt
parity() {
    want=$1
    shift
    code=0
    sh "$source/parity.sh" ./program "$compare" "$source/golden" "$work/runs" "$@" >out.txt 2>err.txt || code=$?
    [ "$code" = "$want" ] || fail "exit code $code, not $want"
}

# import DIR -o RECIPE; eval RECIPE --in IN --dump DUMP --grads. FAULT: what it does wrong
cat >program <<'END'
#!/bin/sh
set -eu
case $1 in
import)
    [ "$FAULT" != import ] || { echo "no such family" >&2; exit 2; }
    [ "$3" = -o ] && echo "$2" >"$4" ;;
eval)
    [ "$3" = --in ] && [ "$5" = --dump ] && [ "$7" = --grads ] && [ -s "$2" ]
    case $FAULT$4 in
    eval*gpt_oss/long*) echo "step: no memory" >&2; exit 1 ;;
    other*olmoe/plain*) cp "${4%plain.in.*}padded.out.safetensors" "$6" ;;
    torn*mixtral/plain*) echo "not a file" >"$6" ;;
    *) cp "${4%.in.*}.out.safetensors" "$6" ;;
    esac ;;
*) exit 2 ;;
esac
END
chmod +x program
export FAULT=

printf 'before\n<!-- parity begin -->\nold\n<!-- parity end -->\nafter\n' >README.md
parity 0 --update "$work/README.md"
cases=$(ls "$source"/golden/*/*.in.safetensors | wc -l)
[ "$(grep -c '| held |$' out.txt)" = "$cases" ] || fail "not $cases rows"
grep -q '^| gpt_oss | padded | 0.0e+00 ' README.md || fail "no table in the README"
[ "$(sed -n '1p;$p' README.md | tr '\n' ' ')" = "before after " ] || fail "the README lost what stands around the table"
! grep -q old README.md || fail "the old table is still there"

for FAULT in import eval other torn; do
    cp README.md kept.md
    parity 1 --update "$work/README.md"
    grep -q 'FAILED |$' out.txt || fail "$FAULT: no row says so"
    cmp -s README.md kept.md || fail "$FAULT: the README was updated"
    case $FAULT in
    import) grep -q '^mixtral -: no such family' err.txt || fail "the reason of import is lost" ;;
    eval) grep -q '^gpt_oss long: step: no memory' err.txt && grep -q '^| qwen3_moe | plain .*held' out.txt ||
        fail "the reason of eval is lost, or the cases after it" ;;
    other) grep -q '^olmoe plain: compare: logits differs' err.txt || fail "the name that differs is lost" ;;
    torn) grep -q '^| mixtral | plain | compare failed' out.txt || fail "a torn dump has no row" ;;
    esac
done
echo "all held"
