#!/bin/sh
# Checkpoints that cannot be written: file size limits, a full disk, directories that are read-only or closed, and
# checkpoints that are not as they were written. disk.sh MOEHOST RESEAL WORKDIR
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
moehost=$1
reseal=$2
work=$3
rm -rf "$work"
mkdir -p "$work"
cd "$work"
# shellcheck source=tests/host/expect.sh
. "$here/expect.sh"

# says WORDS...: the error is one line, with all of these
says() {
    [ "$(wc -l <err.txt)" = 1 ] || { cat err.txt >&2; fail "not one line of error"; }
    for word in "$@"; do grep -qF -- "$word" err.txt || { cat err.txt >&2; fail "the error does not say: $word"; }; done
}
# resumed DIR: what was whole before is whole; goes on, and ends as the run that nothing happened to
resumed() {
    expect 0 "$moehost" run tiny.ini --out "$1" --resume
    for file in model.safetensors optimizer.safetensors; do
        cmp "whole/ckpt/step-00000008/$file" "$1/ckpt/step-00000008/$file" || fail "$1: another $file"
    done
    [ "$(wc -l <"$1/metrics.jsonl")" = 8 ] || fail "$1: metrics have not 8 lines"
    for dir in "$1"/ckpt/.[!.]*; do [ ! -e "$dir" ] || fail "$dir is left"; done
}

i=0
while [ $i -lt 200 ]; do
    echo "the quick brown fox number $i jumps over the lazy dog"
    i=$((i + 1))
done >text.txt
cat >tiny.ini <<'END'
[run]
steps = 8
[data]
train = text.txt
seq_len = 32
[model]
layers = 2
hidden = 64
heads = 4
experts = 8
top_k = 2
expert_ffn = 64
[router]
expert_bias = true
[batch]
global = 4
micro = 2
[checkpoint]
every = 2
keep = 3
END
expect 0 "$moehost" run tiny.ini --out whole
expect 0 "$moehost" run tiny.ini --out half --steps 4
model=$(($(wc -c <whole/ckpt/step-00000008/model.safetensors) / 512))

# broken DIR CAUSE COMMAND...: resumes a copy of half in DIR; the steps are done, the save of step 6 fails for CAUSE
broken() {
    dir=$1
    cause=$2
    shift 2
    expect 1 "$@"
    says "$dir/ckpt" "$cause"
    diff -r half/ckpt "$dir/ckpt" || fail "$dir: the earlier checkpoints have changed"
    [ "$(wc -l <"$dir/metrics.jsonl")" = 6 ] || fail "$dir: metrics have not the 6 lines of the steps done"
}

echo "- files that may not grow: before the weights are whole, and between the two files"
for blocks in 64 $((model + 100)); do
    rm -rf small
    cp -r half small
    broken small "File too large" sh -c "ulimit -f $blocks; exec '$moehost' run tiny.ini --out small --resume"
    resumed small
done

echo "- nothing can be printed: the training is not lost for that"
expect 0 sh -c "exec '$moehost' run tiny.ini --out unheard >/dev/full"
cmp whole/ckpt/step-00000008/model.safetensors unheard/ckpt/step-00000008/model.safetensors || fail "unheard: not trained"

echo "- a file in place of the directory"
cp -r half file
mv file/ckpt file/kept
: >file/ckpt
expect 1 "$moehost" run tiny.ini --out file --resume
says "file/ckpt" "Not a directory"
rm file/ckpt
mv file/kept file/ckpt
resumed file

if setpriv --reuid=65534 --regid=65534 --clear-groups test -x "$moehost" -a -r tiny.ini 2>/dev/null; then
    echo "- a directory of another user"
    cp -r half closed
    chown -R 65534:65534 closed
    chown -R 0:0 closed/ckpt
    broken closed "Permission denied" \
        setpriv --reuid=65534 --regid=65534 --clear-groups "$moehost" run tiny.ini --out closed --resume
    resumed closed
elif [ "$(id -u)" != 0 ]; then
    echo "- a directory without the right to write"
    cp -r half closed
    chmod 500 closed/ckpt
    broken closed "Permission denied" "$moehost" run tiny.ini --out closed --resume
    chmod 700 closed/ckpt
    resumed closed
else
    echo "- (skipped: as root, without setpriv or a build that others can read, nothing is closed)"
fi

# Mounts need a name space of their own, which not every machine gives.
space=
for try in "unshare -m" "unshare -rm"; do
    [ -n "$space" ] || ! $try sh -c "mount -t tmpfs none '$work/half/ckpt'" 2>/dev/null || space=$try
done
if [ -n "$space" ]; then
    echo "- a read-only file system"
    cp -r half frozen
    broken frozen "Read-only file system" $space sh -c "mount --bind frozen/ckpt frozen/ckpt &&
        mount -o remount,bind,ro frozen/ckpt && exec '$moehost' run tiny.ini --out frozen --resume"
    resumed frozen

    echo "- a full disk: every step a checkpoint, all of them kept, until 12 MiB are used"
    mkdir disk
    cat >fill.sh <<'END'
mount -t tmpfs -o size=12m none disk
code=0
"$1" run tiny.ini --out disk/run --steps 100000 --set checkpoint.every=1 --set checkpoint.keep=1000000 || code=$?
cp disk/run/metrics.jsonl filled.jsonl
ls -A disk/run/ckpt >filled.txt
# full to the last byte: not even the recipe can be written, and nothing is touched
cp -r disk/run/ckpt before
cat /dev/zero >disk/rest 2>/dev/null || :
"$1" run tiny.ini --out disk/run --resume --steps 100000 2>full.txt && exit 99
diff -r before disk/run/ckpt && cmp filled.jsonl disk/run/metrics.jsonl || exit 98
# room again: it goes on from the last one
rm disk/rest
rm -r disk/run/ckpt/step-00000001
"$1" run tiny.ini --out disk/run --resume --steps $(($(wc -l <filled.jsonl))) --set checkpoint.every=0 \
    --set checkpoint.keep=1000000 || exit 97
exit $code
END
    expect 1 $space sh fill.sh "$moehost"
    says "disk/run/ckpt/.tmp-step-" "No space left on device"
    last=$(tail -n 1 filled.txt)
    [ "$(wc -l <filled.jsonl)" = $((${last#step-0000000} + 1)) ] || fail "metrics of steps that were done are missing"
    grep -q "^.tmp" filled.txt && fail "a temporary directory is left on the full disk"
    mv full.txt err.txt
    says "disk/run" "No space left on device"
else
    echo "- (skipped: no mounts here, so no full and no read-only file system)"
fi

echo "- a checkpoint that is not as it was written"
# refused CODE WORDS...: changed/ is refused with this, and then made anew
refused() {
    expect "$1" "$moehost" run tiny.ini --out changed --resume
    shift
    says "$@"
    rm -rf changed
    cp -r half changed
}
cp -r half changed
four=changed/ckpt/step-00000004
for file in model.safetensors optimizer.safetensors meta.json; do
    printf x | dd of=$four/$file bs=1 seek=1000 conv=notrunc 2>dd.txt
    refused 1 "step-00000004/$file: " "is damaged: checksum"
    rm $four/$file
    refused 1 "step-00000004/$file: " "No such file"
    truncate -s 900 $four/$file
    refused 1 "step-00000004/$file: "
done
cp $four/optimizer.safetensors $four/optimizer-2.safetensors
refused 1 "step-00000004: 'optimizer-2.safetensors' is no file of this checkpoint"
cp half/ckpt/step-00000002/optimizer.safetensors $four/
refused 1 "step-00000004/optimizer.safetensors: is damaged"
mv $four changed/ckpt/step-00000005
refused 1 "step-00000005: holds step 4"
# with the checksum made right again, so that the change itself must be found
"$reseal" $four/meta.json '"version": 1' '"version": 2'
refused 1 "step-00000004/meta.json: is version 2; this program reads version 1"
"$reseal" $four/meta.json '"step": 4' '"step": 3'
refused 1 "step-00000004: holds step 3"
"$reseal" $four/meta.json '"m.embed"' '"m.embedding"'
refused 1 "step-00000004: state keys differ" "m.embed"
"$reseal" $four/meta.json '"layers.0.router.expert_bias",' ''
refused 1 "step-00000004: state keys differ" "layers.0.router.expert_bias"
"$reseal" $four/meta.json '"run.seed": "1"' '"run.seed": "2"'
refused 2 "step-00000004: was written with run.seed = 2, this recipe has 1"
: >$four/.note # hidden, and read by nobody
resumed changed

echo "- resumed before the first checkpoint: the same run starts again, another one is refused"
expect 0 "$moehost" run tiny.ini --out new
rm -rf new/ckpt
cp new/metrics.jsonl before.jsonl
expect 2 "$moehost" run tiny.ini --out new --resume --set optimizer.lr=0.5
says "no checkpoint to resume from" "recipe.ini is not this one"
cmp before.jsonl new/metrics.jsonl || fail "a refused run changed the metrics"
expect 0 "$moehost" run tiny.ini --out new --resume
grep -q "starts again from step 1" out.txt || fail "nothing said about the new start"
resumed new
mkdir empty
expect 2 "$moehost" run tiny.ini --out empty --resume
says "there is no run to resume"

echo "- keep and keep_every"
expect 0 "$moehost" run tiny.ini --out kept --set checkpoint.every=1 --set checkpoint.keep=1 --set checkpoint.keep_every=3
[ "$(ls -A kept/ckpt | tr '\n' ' ')" = "step-00000003 step-00000006 step-00000008 " ] || fail "kept: $(ls -A kept/ckpt)"
# killed after the last checkpoint, before or amid the removal of the one before: resumed, nothing is left of that
mkdir kept/ckpt/.tmp-step-00000007
expect 0 "$moehost" run tiny.ini --out kept --resume --set checkpoint.keep=1
[ "$(ls -A kept/ckpt | tr '\n' ' ')" = "step-00000008 " ] || fail "kept: $(ls -A kept/ckpt)"
echo "all held"
