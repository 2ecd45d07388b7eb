#!/bin/sh
# Processes with a GPU each (doubles of it): one that is stopped is reported by the other, one that is killed ends all;
# the last checkpoint stays whole. The launcher's part is played here. watch_nccl.sh MOEHOST WORKDIR
set -eu
tests=$(cd "$(dirname "$0")/.." && pwd)
moehost=$1
rm -rf "$2/nccl"
mkdir -p "$2/nccl"
cd "$2/nccl"
# shellcheck source=tests/host/expect.sh
. "$tests/expect.sh"

seq 1000 2000 >text.txt
cp "$tests/watch/tiny.ini" .
# start RANK PORT OUT: one of two processes in the background; its number in $pid
start() {
    RANK=$1 WORLD_SIZE=2 LOCAL_RANK=$1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$2 "$moehost" run tiny.ini --out "$3" \
        --steps 1000000 --quiet --set device.plugin=cuda --set comm.plugin=nccl --set comm.timeout=20 \
        >"out$1.txt" 2>"err$1.txt" &
    pid=$!
}
# run_and SIGNAL VICTIM OUT PORT: two processes, of which one gets the signal after the first checkpoint; the exit code
# of the other in $code
run_and() {
    start 0 "$4" "$3"
    first=$pid
    start 1 "$4" "$3"
    second=$pid
    i=0
    while ! ls "$3"/ckpt/step-*/meta.json >/dev/null 2>&1 && [ $i -lt 1200 ]; do
        kill -0 "$first" 2>/dev/null || break
        i=$((i + 1))
        sleep 0.1
    done
    [ "$2" = 0 ] && victim=$first other=$second || victim=$second other=$first
    kill -"$1" "$victim" || { cat err0.txt err1.txt >&2; fail "the run has not begun"; }
    begin=$(date +%s)
    code=0
    wait "$other" || code=$?
    took=$(($(date +%s) - begin))
    kill -KILL "$victim" 2>/dev/null || true
    wait "$victim" || true
}

echo "- a stopped process"
port=$((20000 + $$ % 20000))
run_and STOP 1 stopped $port
[ $code = 4 ] || { cat err0.txt >&2; fail "exit code $code, not 4"; }
[ $took -lt 90 ] || fail "the end took $took s"
[ "$(grep -c '^moehost: [^n]' err0.txt)" = 1 ] || { cat err0.txt >&2; fail "not one line"; }
grep -q '^moehost: .*has not ended for 2[0-9.]* s\|^moehost: .*has not returned for 2[0-9.]* s' err0.txt || { cat err0.txt >&2; fail "not the watchdog"; }
expect 0 "$moehost" run tiny.ini --out stopped --resume --steps 1

for rank in 0 1; do
    echo "- a killed process, rank $rank"
    run_and KILL $rank killed$rank $((port + 1 + rank))
    [ $code = 4 ] || { cat err0.txt err1.txt >&2; fail "exit code $code, not 4"; }
    [ $took -lt 30 ] || fail "the end took $took s"
    grep -q "rank $rank" "err$((1 - rank)).txt" || { cat err0.txt err1.txt >&2; fail "it is not named"; }
    expect 0 "$moehost" run tiny.ini --out killed$rank --resume --steps 1
done
echo "done"
