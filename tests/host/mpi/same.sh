#!/bin/sh
# A run by processes is the run by threads, bit for bit. same.sh MOEHOST WORKDIR
set -eu
here=$(cd "$(dirname "$0")" && pwd)
moehost=$1
rm -rf "$2"
mkdir -p "$2"
cd "$2"
# shellcheck source=tests/host/expect.sh
. "$here/../expect.sh"
# shellcheck source=tests/host/mpi/common.sh
. "$here/common.sh"

# what of metrics does not depend on clocks: all numbers up to the gradient's norm, and the validation loss
numbers() { sed 's/"step_ms".*"dropped"/"dropped"/; s/,"peak_bytes":[0-9]*//' "$1/metrics.jsonl"; }
same_run() {
    numbers "$1" >a.txt
    numbers "$2" >b.txt
    cmp a.txt b.txt || { diff a.txt b.txt >&2; fail "$1 and $2: other numbers"; }
    for file in model optimizer; do
        cmp "$1/ckpt/step-00000006/$file.safetensors" "$2/ckpt/step-00000006/$file.safetensors" || fail "$1 and $2: other $file"
    done
}

echo "- 2 and 4 processes, data parallel"
for n in 2 4; do
    expect 0 "$moehost" run tiny.ini --out "threads$n" --quiet --set comm.ranks=$n
    expect 0 run_on $n tiny.ini --out "processes$n"
    same_run "threads$n" "processes$n"
    [ "$(grep -c 'M parameters' out.txt)" = 1 ] || fail "more than one rank speaks"
    tail -n 1 out.txt | grep -q '^done: step 6 of 6' || fail "no last line"
    [ ! -s err.txt ] || { cat err.txt >&2; fail "something on stderr"; }
    grep -q "^ranks = $n " "processes$n/recipe.ini" || fail "the resolved recipe has another number of ranks"
done

echo "- experts over processes, and tensor parallelism"
set -- --set parallel.tp=2 --set parallel.ep=4 --set dispatcher.plugin=alltoall
expect 0 "$moehost" run tiny.ini --out threads_ep --quiet --set comm.ranks=4 "$@"
expect 0 run_on 4 tiny.ini --out processes_ep --quiet "$@"
same_run threads_ep processes_ep

echo "- rows written into the memory of other processes; and two nodes of two"
for how in "dispatcher.plugin=deepep" "dispatcher.plugin=alltoall --set comm.virtual_node=2"; do
    # shellcheck disable=SC2086 # two options
    expect 0 run_on 4 tiny.ini --out processes_how --overwrite --quiet --set parallel.tp=2 --set parallel.ep=4 --set $how
    same_run threads_ep processes_how
done

echo "- resumed: by processes what processes began, and what threads began"
expect 0 run_on 2 tiny.ini --out half --quiet --steps 3
expect 0 run_on 2 tiny.ini --out half --resume
grep -q 'resuming after step 3' out.txt || fail "it does not say that it resumes"
same_run threads2 half
expect 0 run_on 2 tiny.ini --out half --resume
tail -n 1 out.txt | grep -q '^nothing to do: step 6 of 6' || fail "a finished run does not say that it is"
expect 0 "$moehost" run tiny.ini --out half --overwrite --quiet --steps 3 --set comm.ranks=2
expect 0 run_on 2 tiny.ini --out half --resume --quiet
same_run threads2 half

echo "- a trace has every rank's nodes"
expect 0 run_on 2 tiny.ini --out traced --set run.trace=2 --steps 3
nodes=$(sed -n 's/.* M parameters, \([0-9]*\) nodes.*/\1/p' out.txt)
[ "$(grep -c '"ph":"X"' traced/trace.json)" = $((nodes * 2 * 2)) ] || fail "not $nodes nodes in two steps of two ranks"
[ "$(tail -n 1 traced/trace.json)" = "]}" ] || fail "the trace has no end"

echo "- eval gathers the rows and gradients of all"
printf '{"tokens":{"dtype":"I32","shape":[4,3],"data_offsets":[0,48]}}  ' >header
printf '\100\0\0\0\0\0\0\0' >in.safetensors
cat header >>in.safetensors
for row in a b c d; do printf '%s\0\0\0b\0\0\0c\0\0\0' $row; done >>in.safetensors
expect 0 "$moehost" eval tiny.ini --in in.safetensors --dump threads.safetensors --grads --set comm.ranks=2 --ckpt half/ckpt/step-00000006
expect 0 processes 2 "$moehost" eval tiny.ini --in in.safetensors --dump processes.safetensors --grads --set comm.plugin=mpi --ckpt half/ckpt/step-00000006
cmp threads.safetensors processes.safetensors || fail "eval differs"
[ "$(wc -l <out.txt)" = 1 ] || fail "eval says more than a line"

echo "- check by processes, and one rank without a launcher"
expect 0 processes 2 "$moehost" check tiny.ini --set comm.plugin=mpi
grep -q ', 2 ranks, ' out.txt || fail "check does not count the processes"
[ "$(wc -l <out.txt)" = 3 ] || fail "check says it more than once"
expect 0 "$moehost" run tiny.ini --out alone --quiet --set comm.plugin=mpi
expect 0 "$moehost" run tiny.ini --out alone_threads --quiet
same_run alone alone_threads
expect 0 "$moehost" generate alone/recipe.ini --prompt "the " --tokens 4
expect 0 "$moehost" generate processes2/recipe.ini --prompt "the " --tokens 4
echo "all is the same"
