#!/bin/sh
# How a run by processes ends that cannot go on: refused at start, a rank that fails, is killed, stopped, or asked to
# end. ends.sh MOEHOST WORKDIR FAILING_ROUTER
set -eu
here=$(cd "$(dirname "$0")" && pwd)
moehost=$1
failing=$3
rm -rf "$2"
mkdir -p "$2"
cd "$2"
# shellcheck source=tests/host/expect.sh
. "$here/../expect.sh"
# shellcheck source=tests/host/mpi/common.sh
. "$here/common.sh"
mpi="--set comm.plugin=mpi"

echo "- ranks with different recipes or plugins are refused, with the field"
# differ WHAT OPTION...: the second process has more options
differ() {
    what=$1
    shift
    expect 2 mpirun --quiet --oversubscribe -n 1 "$moehost" run tiny.ini --out never $mpi : -n 1 "$moehost" run tiny.ini --out never $mpi "$@"
    [ "$(grep -c "^moehost: ranks 0 and 1 differ in the recipe: $what\$" err.txt)" = 1 ] || { cat err.txt >&2; fail "not told once: $what"; }
    [ ! -e never ] || fail "a refused run has a directory"
}
differ 'rank 0 has \[optimizer\] lr = 0.01, rank 1 \[optimizer\] lr = 0.02' --set optimizer.lr=0.02
differ 'rank 0 has \[model\] experts = 4, rank 1 \[model\] experts = 8' --set model.experts=8
differ 'rank 0 has \[precision\] plugin = fp32, rank 1 \[precision\] plugin = bf16' --set precision.plugin=bf16
umask 022 # the loader refuses what others may write
mkdir -p elsewhere
cp "$moehost" elsewhere/moehost
for file in "$(dirname "$moehost")"/plugins/*/*.so; do
    kind=$(basename "$(dirname "$file")")
    mkdir -p "elsewhere/plugins/$kind"
    cp "$file" "elsewhere/plugins/$kind/"
done
printf x >>elsewhere/plugins/router/topk.so
expect 2 mpirun --quiet --oversubscribe -n 1 "$moehost" run tiny.ini --out never $mpi : -n 1 elsewhere/moehost run tiny.ini --out never $mpi
grep -q '^moehost: .*ranks 0 and 1 differ in the plugins and data: rank 0 has router/topk = .*, rank 1 router/topk = ' err.txt || { cat err.txt >&2; fail "another file is not told"; }

echo "- what is wrong with one rank only is told with its number, what is wrong with all once"
expect 2 mpirun --quiet --oversubscribe -n 1 "$moehost" run tiny.ini --out never $mpi : -n 1 "$moehost" run tiny.ini --out never $mpi --set router.nothing=1
grep -q '^rank 1: --set router.nothing=1: ' err.txt || { cat err.txt >&2; fail "rank 1 is not named"; }
expect 2 run_on 2 tiny.ini --out never --set comm.ranks=3
[ "$(grep -c 'ranks = 3, but the launcher of comm/mpi has started 2 processes' err.txt)" = 1 ] || fail "not told once"
expect 2 processes 2 "$moehost" generate tiny.ini --prompt x $mpi
[ "$(grep -c 'moehost generate: is one process; the launcher has started 2' err.txt)" = 1 ] || fail "generate runs twice"
expect 2 "$moehost" run tiny.ini --out never --set comm.plugin=mpi --set comm.ranks=2
[ ! -e never ] || fail "a refused run has a directory"

echo "- processes that a launcher has started are one run, or none"
expect 2 processes 2 "$moehost" run tiny.ini --out never
grep -q 'a launcher has started 2 processes (OMPI_COMM_WORLD_SIZE), but comm/threads' err.txt || { cat err.txt >&2; fail "two runs in one directory"; }
expect 2 env RANK=0 WORLD_SIZE=3 LOCAL_RANK=0 "$moehost" run tiny.ini --out never --set comm.plugin=mpi
[ "$(grep -c 'a launcher has started 3 processes (WORLD_SIZE), but comm/mpi' err.txt)" = 1 ] || { cat err.txt >&2; fail "mpi alone under torchrun"; }
expect 0 env WORLD_SIZE=3 "$moehost" check tiny.ini
[ ! -e never ] || fail "a refused run has a directory"

echo "- a plugin that fails on rank 1 in step 3 ends all with its words, and the checkpoint before stays"
sed '/^\[router\]/,/^aux_coef/d; s/^eval_every.*/eval_every = 100/; s/^every.*/every = 2/' tiny.ini >plain.ini
start=$(date +%s)
expect 1 run_on 2 plain.ini --out fails --set "router.plugin=$failing"
[ $(($(date +%s) - start)) -lt 60 ] || fail "that took long"
[ "$(grep -c '^moehost: rank 1: .*the fifth call is one too many' err.txt)" = 1 ] || { cat err.txt >&2; fail "not told once"; }
[ "$(ls fails/ckpt)" = step-00000002 ] || fail "checkpoints: $(ls fails/ckpt)"
expect 2 run_on 2 plain.ini --out fails # and the lock is free
grep -q 'holds a run already' err.txt || fail "another refusal"

# Nothing is left running, whatever fails.
sh=
end_all() {
    [ -n "$sh" ] || return 0
    for up in $(pgrep -P "$sh") "$sh"; do
        pkill -KILL -P "$up" || true
        kill -KILL "$up" 2>/dev/null || true
    done
}
trap end_all EXIT

# any checkpoint: old ones are pruned within milliseconds
has_begun() { ls "$1"/ckpt/step-*/meta.json || gone "$2"; }
# begin OUT: a long run on 2 processes in the background, past its first checkpoint; $launcher is mpirun
begin() {
    out=$1
    shift
    run_on 2 tiny.ini --out "$out" --steps 1000000 --quiet "$@" >"$out.out" 2>"$out.err" &
    sh=$!
    wait_until 120 has_begun "$out" $sh
    gone $sh && { cat "$out.err" >&2; fail "$out ended too early"; }
    launcher=$(pgrep -P $sh -x mpirun || true)
    [ -n "$launcher" ] || launcher=$sh
}
# finish: its code, in $code
finish() {
    start=$(date +%s)
    code=0
    wait $sh || code=$?
    sh=
    took=$(($(date +%s) - start))
}
# goes_on OUT: the last checkpoint is whole
goes_on() {
    last=$(ls "$1/ckpt" | tail -n 1)
    step=$(echo "$last" | sed 's/step-0*//')
    expect 0 "$moehost" run tiny.ini --out "$1" --resume --steps $((step + 1)) --quiet --set comm.ranks=2
}

echo "- SIGKILL of one rank ends the run"
begin killed
kill -KILL "$(pid_of "$launcher" 1)"
finish
[ "$code" != 0 ] || fail "exit code 0"
[ $took -le 10 ] || fail "it took $took s"
goes_on killed

echo "- SIGTERM to a rank is a request to all: exit code 143"
begin asked
kill -TERM "$(pid_of "$launcher" 1)"
finish
[ "$code" = 143 ] || { cat asked.err >&2; fail "exit code $code"; }
[ $took -le 30 ] || fail "it took $took s"
last=$(ls asked/ckpt | tail -n 1 | sed 's/step-0*//')
[ "$(tail -n 1 asked/metrics.jsonl | sed 's/{"step":\([0-9]*\),.*/\1/')" = "$last" ] || fail "the last step has no checkpoint"
goes_on asked

echo "- SIGTERM to mpirun: a checkpoint, if a second is enough"
begin ended
kill -TERM "$launcher"
finish
[ "$code" != 0 ] || fail "exit code 0"
[ $took -le 15 ] || fail "it took $took s"
goes_on ended

echo "- SIGSTOP of one rank: the others name it, and end"
begin stopped --set comm.timeout=12
victim=$(pid_of "$launcher" 1)
kill -STOP "$victim"
finish
[ "$code" = 4 ] || { cat stopped.err >&2; fail "exit code $code"; }
[ $took -le 60 ] || fail "it took $took s"
grep -Eq ': rank 1 (has not come|does not go on)' stopped.err || { cat stopped.err >&2; fail "rank 1 is not named"; }
wait_until 10 gone "$victim"
goes_on stopped
echo "all ends as it should"
