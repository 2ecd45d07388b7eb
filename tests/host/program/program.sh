#!/bin/sh
# Runs the program as a user does: train, resume, interrupt, continue a text. program.sh MOEHOST WORKDIR SOURCE SANITIZE
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
moehost=$1
work=$2/work
source=$3
sanitize=$4
rm -rf "$work"
mkdir -p "$work"
cd "$work"
# shellcheck source=tests/host/expect.sh
. "$here/expect.sh"

# last NAME FILE: the value of a field on the last line of metrics
last() { tail -n 1 "$2" | sed -n "s/.*\"$1\": *\\([-0-9.e+]*\\).*/\\1/p"; }

put_text 400
put_tiny 4

echo "- a run leaves metrics, recipe and checkpoints"
expect 0 "$moehost" run tiny.ini --out whole
[ "$(wc -l <whole/metrics.jsonl)" = 6 ] || fail "metrics.jsonl has not 6 lines"
for field in step tokens loss aux_loss z_loss lr grad_norm step_ms tokens_per_s model_gflops mfu dropped imbalance dead \
    router_entropy peak_bytes val_loss; do
    tail -n 1 whole/metrics.jsonl | grep -q "\"$field\":" || fail "metrics lack $field"
done
[ -f whole/ckpt/step-00000006/meta.json ] || fail "no final checkpoint"
grep -q 'loss' out.txt || fail "no plain lines of progress"
tail -n 1 out.txt | grep -q '^done: step 6 of 6; output is in whole, .*whole/ckpt/step-00000006$' || fail "no last line"

echo "- a trace holds every node of the steps asked for, once a rank"
expect 0 "$moehost" run tiny.ini --out traced --set run.trace=2 --set comm.ranks=2
nodes=$(sed -n 's/.* M parameters, \([0-9]*\) nodes.*/\1/p' out.txt)
[ "$(grep -c '"ph":"X"' traced/trace.json)" = $((nodes * 2 * 2)) ] || fail "not $nodes nodes in two steps of two ranks"
[ "$(tail -n 1 traced/trace.json)" = "]}" ] || fail "the trace has no end"

echo "- dropped choices are reported"
expect 0 "$moehost" run tiny.ini --out dropping --set capacity.factor=0.25
[ "$(tail -n 1 dropping/metrics.jsonl | sed -n 's/.*"dropped":0\.\([0-9]\).*/\1/p')" -ge 5 ] || fail "too few choices dropped"

echo "- bench shows the step, its parts and the peak"
expect 0 "$moehost" bench tiny.ini --steps 1 --json
for name in peak step experts.time routing.time step_with_optimizer update.time; do
    grep -q "^{\"name\":\"$name\",\"value\":[0-9.e+-]*,\"unit\":\"[A-Za-z/]*\"" out.txt || fail "bench lacks $name"
done
grep '"name":"step"' out.txt | grep -q '"fraction":0\.' || fail "the step has no fraction of the peak"
! grep '"name":"other.time"' out.txt | grep -v '"value":0\.' || fail "nodes of the model belong to no part"

echo "- bench dispatch: every dispatcher sends what its formula says, beside a copy of the rows that land"
expect 0 "$moehost" bench dispatch --tokens 19 --hidden 24 --top-k 3 --experts 8 --node-size 2 --runs 1 --steps 1 --json
for id in deepep hier alltoall allgather; do
    for name in copy layout dispatch combine; do
        grep -q "^{\"name\":\"$id.$name\",\"value\":[0-9.e+-]*,\"unit\":\"M*[a-z/]*\"" out.txt || fail "no $id.$name"
    done
    grep "\"$id.dispatch\"" out.txt | grep -q '"fraction":' || fail "$id.dispatch has no fraction of the copy"
    [ "$id" = allgather ] && continue
    for way in dispatch combine; do
        grep "\"$id.$way.sent\"" out.txt | grep -q '"fraction":1.0000' || fail "$id.$way.sent is not the formula"
    done
done
grep '"hier.dispatch.sent_far"' out.txt | grep -q '"fraction":1.0000' || fail "hier sends more than one row a node"
expect 2 "$moehost" bench dispatch --experts 6
grep -q 'experts 6 is no multiple of --ranks 4' err.txt || fail "no reason why 6 experts do not fit"
expect 2 "$moehost" bench tiny.ini --tokens 3
grep -q 'tokens is an option of bench dispatch' err.txt || fail "an option without effect is taken"

echo "- a run directory is not overwritten by accident"
expect 2 "$moehost" run tiny.ini --out whole
grep -q 'resume' err.txt || fail "the refusal does not say what to do"

echo "- the resolved recipe gives the same run again, bit for bit"
expect 0 "$moehost" run whole/recipe.ini --out again
[ "$(last loss again/metrics.jsonl)" = "$(last loss whole/metrics.jsonl)" ] || fail "the resolved recipe runs differently"
cmp whole/ckpt/step-00000006/model.safetensors again/ckpt/step-00000006/model.safetensors || fail "other weights"

echo "- resume equals never having stopped, bit for bit"
expect 0 "$moehost" run tiny.ini --out half --steps 3
expect 0 "$moehost" run tiny.ini --out half --resume
for file in model optimizer; do
    cmp "whole/ckpt/step-00000006/$file.safetensors" "half/ckpt/step-00000006/$file.safetensors" || fail "resumed $file differs"
done
[ "$(wc -l <half/metrics.jsonl)" = 6 ] || fail "resumed metrics have not 6 lines"

echo "- resume of a finished run does nothing and says so"
expect 0 "$moehost" run tiny.ini --out half --resume
tail -n 1 out.txt | grep -q '^nothing to do: step 6 of 6' || fail "a finished run does not say that it is"
expect 0 "$moehost" run tiny.ini --out half --resume --quiet
[ ! -s out.txt ] || fail "--quiet is not"

echo "- eval says the loss, and what a checkpoint is"
printf '{"tokens":{"dtype":"I32","shape":[1,3],"data_offsets":[0,12]}}  ' >header
printf '\100\0\0\0\0\0\0\0' >in.safetensors
cat header >>in.safetensors
printf 'a\0\0\0b\0\0\0c\0\0\0' >>in.safetensors
expect 0 "$moehost" eval tiny.ini --in in.safetensors --dump dump.safetensors --ckpt whole/ckpt/step-00000006
grep -q '^loss [0-9.]* over 2 tokens; .* dump.safetensors$' out.txt || { cat out.txt; fail "eval says no loss"; }
[ "$(wc -l <out.txt)" = 1 ] || fail "eval says more"
expect 2 "$moehost" eval tiny.ini --in in.safetensors --dump dump.safetensors --ckpt whole
grep -q 'whole: is the directory of a run; .*--ckpt whole/ckpt/step-00000006' err.txt || fail "a run as --ckpt: no hint"
[ "$(wc -l <err.txt)" = 1 ] || fail "a run as --ckpt: more than one line"

echo "- one and two compute threads, the same bits"
expect 0 "$moehost" run tiny.ini --out one --set device.threads=1
expect 0 "$moehost" run tiny.ini --out two --set device.threads=2
cmp one/ckpt/step-00000006/model.safetensors two/ckpt/step-00000006/model.safetensors || fail "threads change bits"

echo "- two ranks as threads"
expect 0 "$moehost" run tiny.ini --out ranks --set comm.ranks=2
awk -v a="$(last loss ranks/metrics.jsonl)" -v b="$(last loss whole/metrics.jsonl)" \
    'BEGIN { d = a - b; if (d < 0) d = -d; exit !(d < 1e-4 * b) }' || fail "two ranks learn something else"

echo "- bf16, dense, and a router by path"
expect 0 "$moehost" run tiny.ini --out bf16 --set precision.plugin=bf16
sed -e '/^\[router\]/,/^aux_coef/d' -e '/^experts/d' -e '/^top_k/d' -e '/^expert_ffn/d' tiny.ini >dense.ini
expect 0 "$moehost" run dense.ini --set model.dense_ffn=48 --out dense
sed -e '/^expert_bias/d' -e '/^aux_coef/d' tiny.ini >plain.ini
expect 0 "$moehost" run plain.ini --set "router.plugin=$(dirname "$moehost")/plugins/router/template.so" --out path

echo "- the README's own router"
cp -r "$source/plugins/template" my_router
make -s -C my_router ABI="$source/abi"
mkdir recipes
sed '/^renormalise/d; /^aux_coef/d; s#^plugin = topk#plugin = ../my_router/template.so#' \
    "$source/recipes/quickstart.ini" >recipes/mine.ini
expect 0 "$moehost" check recipes/mine.ini
expect 0 "$moehost" check recipes/mine.ini --resolved
grep -q 'loaded router/template .*my_router/template.so' out.txt || fail "the resolved recipe does not name what was loaded"

echo "- plugins shows the options of a file as of an id"
for name in "router/./my_router/template.so" "router/$PWD/my_router/template.so" my_router/template.so; do
    expect 0 "$moehost" plugins "$name"
    grep -q '^router/template ' out.txt || fail "plugins $name shows no plugin"
    [ "$(grep -c '^[a-z]*/' out.txt)" = 1 ] || fail "plugins $name shows others"
    grep -q 'no options\|0\.\.' out.txt || fail "plugins $name shows no options"
done
expect 3 "$moehost" plugins router/./absent.so
grep -q 'absent.so: there is no such file' err.txt || fail "no reason for an absent file"
expect 3 "$moehost" plugins scheduler/./my_router/template.so
grep -q 'holds no such plugin' err.txt || fail "no reason for another kind"
expect 3 "$moehost" plugins ./tiny.ini
grep -q 'tiny.ini: plugin refused: ' err.txt || fail "no reason for a file that is no library"

echo "- a refused --overwrite or --resume leaves the old run as it was"
cp -r whole kept
expect 2 "$moehost" run tiny.ini --out whole --overwrite --set router.score=sigmoid --set router.order=after
expect 2 "$moehost" run tiny.ini --out whole --resume --set optimizer.kind=sgd --set optimizer.beta2=0.95 --steps 9
diff -r whole kept || fail "a refused run changed the old one"

echo "- another model, data order or router is not resumed"
for change in model.heads=8 model.rope_theta=5000 model.window=4 capacity.factor=2 data.seq_len=16 run.seed=9 router.score=sigmoid batch.global=8; do
    expect 2 "$moehost" run tiny.ini --out whole --resume --steps 9 --set $change
    grep -q "was written with" err.txt || fail "no reason given for $change"
done
expect 2 "$moehost" run tiny.ini --out whole --resume --steps 9 --set router.jitter=0.1
grep -q "layers.0.router: was written with jitter=0, this recipe has jitter=0.1\$" err.txt || { cat err.txt >&2; fail "the option is not named"; }
expect 2 "$moehost" generate tiny.ini --out whole --prompt x --set model.top_k=3

echo "- eval does not write over what it reads, nor wait for a pipe"
mkfifo piped.part
printf 'y\0\0\0\0\0\0\0{"tokens":{"dtype":"I32","shape":[1,4],"data_offsets":[0,16]},"mask":{"dtype":"U8","shape":[1,4],"data_offsets":[16,20]}}' >in.st
printf 'a\0\0\0b\0\0\0c\0\0\0d\0\0\0\0\0\0\0' >>in.st
expect 0 "$moehost" eval tiny.ini --in in.st --dump out.st --ckpt whole/ckpt/step-00000006
expect 2 "$moehost" eval tiny.ini --in in.st --dump ./in.st
expect 1 "$moehost" eval tiny.ini --in in.st --dump piped

echo "- generate continues a prompt, the same way each time"
expect 0 "$moehost" generate tiny.ini --out whole --prompt "the quick " --tokens 20 --seed 7
cp out.txt first.txt
grep -aq '^the quick ' out.txt || fail "the prompt is not there"
expect 0 "$moehost" generate tiny.ini --out whole --prompt "the quick " --tokens 20 --seed 7
cmp first.txt out.txt || fail "the same seed draws other tokens"

echo "- SIGINT and SIGTERM: checkpoint first, 130 and 143"
for name in INT TERM; do
    code=0
    # a background job of a shell ignores SIGINT: env restores the default
    env --default-signal=INT "$moehost" run tiny.ini --out "stop$name" --steps 1000000 --set checkpoint.every=0 >out.txt 2>err.txt &
    pid=$!
    n=0
    while [ ! -s "stop$name/metrics.jsonl" ]; do
        n=$((n + 1))
        [ $n -lt 600 ] || fail "no step within a minute"
        sleep 0.1
    done
    kill -s $name $pid
    wait $pid || code=$?
    case $name in INT) want=130 ;; *) want=143 ;; esac
    [ "$code" = $want ] || { cat err.txt >&2; fail "SIG$name: exit code $code, not $want"; }
    ls "stop$name"/ckpt/step-*/meta.json >/dev/null || fail "SIG$name left no checkpoint"
    tail -n 1 out.txt | grep -q "^stopped by SIG$name after step .*/ckpt/step-[0-9]*; .*--resume goes on" ||
        fail "SIG$name: the last line does not say how to go on"
done

echo "- a loss that is not a number ends the run with 1"
expect 1 "$moehost" run tiny.ini --out nan --set optimizer.lr=1000 --set optimizer.clip=0 --set model.init_std=10 --steps 50
[ "$(wc -l <err.txt)" = 1 ] || { cat err.txt >&2; fail "more than one line of error"; }

if [ -z "$sanitize" ]; then
    echo "- check of the quickstart is quick"
    begin=$(date +%s%N)
    expect 0 "$moehost" check "$source/recipes/quickstart.ini"
    ms=$((($(date +%s%N) - begin) / 1000000))
    echo "  $ms ms"
    [ $ms -lt 500 ] || fail "check took $ms ms, the limit is 500"
fi
echo "all held"
