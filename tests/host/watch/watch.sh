#!/bin/sh
# Ranks that do not come, or that never return, end the run with exit code 4, one line, and the last checkpoint as it
# was. watch.sh MOEHOST WORKDIR LATE.so
set -eu
tests=$(cd "$(dirname "$0")/.." && pwd)
moehost=$1
late=$3
rm -rf "$2/work"
mkdir -p "$2/work"
cd "$2/work"
# shellcheck source=tests/host/expect.sh
. "$tests/expect.sh"

seq 1000 2000 >text.txt
cp "$tests/watch/tiny.ini" .
# one_line WORDS...: of what was said on stderr there is one line, which has these words
one_line() {
    grep -v '^moehost: note:' err.txt >lines.txt || true
    [ "$(wc -l <lines.txt)" = 1 ] || { cat err.txt >&2; fail "not one line"; }
    for words; do
        grep -q -- "$words" lines.txt || { cat err.txt >&2; fail "lacks '$words'"; }
    done
}

echo "- a call that takes too long ends the run"
expect 0 "$moehost" run tiny.ini --out slow --set comm.ranks=2 --steps 2
for timeout in 0.3 2 10; do # on a slow machine the start alone may take longer
    expect 4 "$moehost" run tiny.ini --out slow --set comm.ranks=2 --resume --set comm.timeout=$timeout \
        --set comm.latency_us="$(echo "$timeout" | awk '{ print int($1 * 3e6) }')"
    grep -q 'all_reduce on group' err.txt && break
done
one_line 'moehost: ' 'rank [01]: [a-z.]*all_reduce on group [a-z.]* has not returned for [0-9.]* s'
[ "$(ls slow/ckpt)" = step-00000002 ] || fail "the checkpoint of step 2 is not alone"
expect 0 "$moehost" run tiny.ini --out slow --set comm.ranks=2 --resume
[ -f slow/ckpt/step-00000006/meta.json ] || fail "the run does not go on from its checkpoint"

echo "- a rank that is lost in a plugin is named by the other, and given up"
for timeout in 4 20 60; do # on a busy machine a rank may need long before its first step
    rm -rf lost
    expect 4 "$moehost" run tiny.ini --out lost --set comm.ranks=2 --set router.plugin="$late" \
        --set comm.timeout=$timeout
    grep -q 'inside of L0' err.txt && break
done
one_line 'has not returned for [0-9.]* s' 'rank [01] has not come' 'has not ended 5' \
    'given up, inside of L0\.mb0\.route\.fwd$'
[ "$(ls lost/ckpt)" = step-00000002 ] || fail "the checkpoint of step 2 is not alone"
expect 0 "$moehost" run tiny.ini --out lost --set comm.ranks=2 --set router.plugin="$late" --resume --steps 2

echo "- a timeout is a number of seconds"
expect 2 "$moehost" check tiny.ini --set comm.timeout=-1
one_line 'comm.timeout' '-1'
echo "done"
