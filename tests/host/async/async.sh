#!/bin/sh
# The program on a device whose memory the host cannot read: all that reads or writes weights, what it must refuse, and
# how it ends. On "late" everything has the CPU's bits; the double of "cuda" has numbers of its own.
# async.sh MOEHOST WORKDIR DEVICE COMM [PLUGINS]
set -eu
tests=$(cd "$(dirname "$0")/.." && pwd)
moehost=$1 work=$2/work_$3 device=$3 comm=$4
[ $# -lt 5 ] || export MOEHOST_PLUGIN_PATH="$5"
rm -rf "$work"
mkdir -p "$work"
cd "$work"
# shellcheck source=tests/host/expect.sh
. "$tests/expect.sh"

last=ckpt/step-00000006
two="--set comm.plugin=$comm --set comm.ranks=2"
put_text 200
put_tiny 4
sed -i 's/^expert_bias = true/renormalise = true/' tiny.ini
cp tiny.ini cpu.ini
printf '[device]\nplugin = %s\n' "$device" >>tiny.ini

# same A B: runs whose last checkpoints have the same bits
same() {
    for file in model optimizer; do
        cmp "$1/$last/$file.safetensors" "$2/$last/$file.safetensors" || fail "$file of $1 and $2 differ"
    done
}
# near A B: the last losses are within 0.1 %
near() {
    for run; do tail -n 1 "$run/metrics.jsonl" | sed -n 's/.*"loss": *\([-0-9.e+]*\).*/\1/p'; done >losses.txt
    awk '{ v[NR] = $1 } END { d = v[1] - v[2]; if (d < 0) d = -d; exit !(NR == 2 && d < 1e-3 * v[1]) }' losses.txt ||
        { cat losses.txt >&2; fail "$1 and $2 learn other things"; }
}
# likewise A B: as the CPU, where this device computes as the CPU does
likewise() {
    [ "$device" != late ] || cmp "$1" "$2" || fail "$1 is not the CPU's"
}
# refused CODE WORDS...: the last command's one line on stderr begins with the first words and has the others
refused() {
    [ "$(wc -l <err.txt)" = 1 ] || { cat err.txt >&2; fail "not one line"; }
    case $(cat err.txt) in "$1"*) ;; *) cat err.txt >&2; fail "does not begin with '$1'" ;; esac
    for words; do grep -q -F -- "$words" err.txt || { cat err.txt >&2; fail "lacks '$words'"; }; done
}

echo "- it trains, and goes on from its checkpoint and from the CPU's"
expect 0 "$moehost" check tiny.ini
expect 0 "$moehost" run cpu.ini --out cpu
expect 0 "$moehost" run tiny.ini --out whole
expect 0 "$moehost" run tiny.ini --out half --steps 3
expect 0 "$moehost" run tiny.ini --out half --resume
same whole half
near whole cpu
likewise whole/$last/model.safetensors cpu/$last/model.safetensors
expect 0 "$moehost" run cpu.ini --out moved --steps 3
expect 0 "$moehost" run tiny.ini --out moved --resume
near moved cpu

echo "- two ranks, with the experts of each, and with a whole optimiser each"
for options in "--set parallel.ep=2 --set dispatcher.plugin=alltoall" "--set optimizer.distributed=false"; do
    # shellcheck disable=SC2086 # words
    expect 0 "$moehost" run tiny.ini --out ranks --overwrite $two $options
    near ranks cpu
done

echo "- weights are read back: generate, eval, export, import"
expect 0 "$moehost" generate tiny.ini --out whole --prompt 'the quick ' --tokens 8 --temperature 0
cp out.txt text_of_device
expect 0 "$moehost" generate cpu.ini --out whole --prompt 'the quick ' --tokens 8 --temperature 0
likewise text_of_device out.txt
printf '\100\0\0\0\0\0\0\0{"tokens":{"dtype":"I32","shape":[1,3],"data_offsets":[0,12]}}  a\0\0\0b\0\0\0c\0\0\0' >in.st
expect 0 "$moehost" eval tiny.ini --in in.st --dump device.st --ckpt whole/$last
expect 0 "$moehost" eval cpu.ini --in in.st --dump cpu.st --ckpt whole/$last
likewise device.st cpu.st
expect 0 "$moehost" export whole hf --dtype f32
expect 0 "$moehost" run tiny.ini --out from_hf --steps 1 --set "model.weights=hf"
first=$(sed -n '1s/.*"loss": *\([0-9.]*\).*/\1/p' from_hf/metrics.jsonl)
fresh=$(sed -n '1s/.*"loss": *\([0-9.]*\).*/\1/p' whole/metrics.jsonl)
awk -v a="$first" -v b="$fresh" 'BEGIN { exit !(a < b) }' || fail "what begins with trained weights has loss $first, not below $fresh"

echo "- what wants the times of a step's parts is refused, or says that it lacks them"
expect 3 "$moehost" run tiny.ini --out traced --set run.trace=2
refused '--set run.trace=2: ' "device/$device" 'asynchronous'
[ ! -d traced ] || fail "a refused run has left a folder"
if [ "$device" = late ]; then # the double of a GPU needs minutes for its peak
    expect 0 "$moehost" bench tiny.ini --steps 1 --json
    grep -q "note: tiny.ini: device/late is asynchronous: a step's time is known, that of its parts is not" err.txt ||
        fail "bench does not say what it cannot tell"
    for name in peak copy step step_with_optimizer tokens memory.arena; do
        grep -q "^{\"name\":\"$name\",\"value\":[0-9.]*[1-9]" out.txt || fail "bench lacks $name"
    done
    ! grep -q '"name":"\(experts\|routing\|update\|other\)' out.txt || fail "bench has times of parts"
fi

echo "- plugins that would read its memory are refused at their line of the recipe"
for kind in router/forced dispatcher/hier; do
    id=${kind#*/}
    case $id in
        forced) sed '/^renormalise/d; /^aux_coef/d; /^\[router\]/d' tiny.ini >other.ini ;;
        *) cp tiny.ini other.ini ;;
    esac
    printf '[%s]\nplugin = %s\n' "${kind%/*}" "$id" >>other.ini
    line=$(wc -l <other.ini)
    for command in check "run --out other" "bench --steps 1"; do
        # shellcheck disable=SC2086 # words
        set -- $command
        word=$1
        shift
        # shellcheck disable=SC2086 # words
        expect 3 "$moehost" "$word" other.ini "$@" $two
        refused "other.ini:$line:10: [${kind%/*}] plugin: plugin ${kind%/*} '$id' is for device cpu, and the device is $device" \
            "there is no $kind-$device.so" "plugins/$kind.so: holds no such id for this device"
    done
done
[ ! -d other ] || fail "a refused run has left a folder"
expect 3 "$moehost" run tiny.ini --out other --set precision.plugin=fp33
refused '--set precision.plugin=fp33: ' "plugin precision 'fp33' for device $device not found" 'fp32'

echo "- plugins lists what there is, with the device of each"
expect 0 "$moehost" plugins
for words in "device/$device .*device $device," "router/topk .*device $device," 'router/topk .*device cpu,' \
    'dispatcher/local .*device any,'; do
    grep -q "^$words" out.txt || { cat out.txt >&2; fail "plugins lacks '$words'"; }
done

if [ "$device" = cuda ]; then
    echo "- a rank that no other joins says so, once"
    expect 4 env RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=9 "$moehost" run tiny.ini --out apart \
        --set comm.plugin=nccl --set comm.timeout_s=1 --set parallel.dp=2
    refused '--set comm.plugin=nccl: comm/nccl: ' 'rank 1 did not reach rank 0 at 127.0.0.1'
    [ ! -d apart ] || fail "a refused run has left a folder"
    echo "all held"
    exit 0
fi
echo "- a call on the device that takes too long ends all ranks with 4, one line, and the checkpoint as it was"
# shellcheck disable=SC2086 # words
expect 0 "$moehost" run tiny.ini --out slow $two --steps 3
for timeout in 1 3 10; do # on a slow machine the start alone may take longer
    # shellcheck disable=SC2086 # words
    expect 4 "$moehost" run tiny.ini --out slow $two --resume --set comm.timeout=$timeout --set comm.latency_us=${timeout}999999
    grep -q 'call [0-9]*: ' err.txt && break
done
grep -v '^moehost: note:' err.txt >lines.txt || true
mv lines.txt err.txt
refused 'moehost: ' 'a communication call has not ended for ' ': call '
[ "$(ls slow/ckpt)" = step-00000003 ] || fail "the checkpoint of step 3 is not alone"
# shellcheck disable=SC2086 # words
expect 0 "$moehost" run tiny.ini --out slow $two --resume
near slow cpu
echo "all held"
