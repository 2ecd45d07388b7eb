#!/bin/sh
# A process that is stopped is reported by the others, one that is killed ends all; the last checkpoint stays whole.
# watch_mpi.sh MOEHOST WORKDIR
set -eu
tests=$(cd "$(dirname "$0")/.." && pwd)
moehost=$1
rm -rf "$2/mpi"
mkdir -p "$2/mpi"
cd "$2/mpi"
# shellcheck source=tests/host/expect.sh
. "$tests/expect.sh"

seq 1000 2000 >text.txt
cp "$tests/watch/tiny.ini" .

# run_and SIGNAL OUT: two processes, of which one gets the signal after the first checkpoint; exit code in $code
run_and() {
    mpirun --oversubscribe -n 2 "$moehost" run tiny.ini --out "$2" --steps 1000000 --quiet --set comm.plugin=mpi \
        --set comm.timeout=20 >out.txt 2>err.txt &
    job=$!
    i=0
    while ! ls "$2"/ckpt/step-*/meta.json >/dev/null 2>&1 && [ $i -lt 600 ]; do
        kill -0 $job 2>/dev/null || break
        i=$((i + 1))
        sleep 0.1
    done
    victim=$(pgrep -P $job | tail -n 1)
    [ -n "$victim" ] || { cat err.txt >&2; fail "the run has not begun"; }
    kill -"$1" "$victim"
    begin=$(date +%s)
    code=0
    wait $job || code=$?
    took=$(($(date +%s) - begin))
    kill -KILL "$victim" 2>/dev/null || true
}

echo "- a stopped process"
run_and STOP stopped
[ $code = 4 ] || { cat err.txt >&2; fail "exit code $code, not 4"; }
[ $took -lt 90 ] || fail "the end took $took s"
[ "$(grep -c '^moehost: ' err.txt)" = 1 ] || { cat err.txt >&2; fail "not one line"; }
grep -q '^moehost: .*has not returned for 2[0-9.]* s: .*rank [01] \(has not come\|does not go on\)' err.txt ||
    { cat err.txt >&2; fail "nobody is named"; }
expect 0 "$moehost" run tiny.ini --out stopped --resume --set comm.ranks=2 --steps 1

echo "- a killed process"
run_and KILL killed
[ $code != 0 ] || fail "the run ends well without a rank"
[ $took -lt 30 ] || fail "the end took $took s"
expect 0 "$moehost" run tiny.ini --out killed --resume --set comm.ranks=2 --steps 1
echo "done"
