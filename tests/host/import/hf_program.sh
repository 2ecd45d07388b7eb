#!/bin/sh
# Hugging Face folders as a user meets them: train, export, import, start from the weights, and every refusal's code.
# hf_program.sh MOEHOST WORKDIR
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
moehost=$1
work=$2/work
rm -rf "$work"
mkdir -p "$work"
cd "$work"
# shellcheck source=tests/host/expect.sh
. "$here/expect.sh"

# says WORDS: they are on stderr of the last command
says() { grep -q -- "$1" err.txt || { cat err.txt >&2; fail "stderr lacks '$1'"; }; }
first_loss() { head -n 1 "$1/metrics.jsonl" | sed -n 's/.*"loss": *\([-0-9.e+]*\).*/\1/p'; }

put_text 300

cat >tiny.ini <<'END'
[run]
steps = 3
[data]
train = text.txt
seq_len = 32
[model]
layers = 2
hidden = 32
heads = 4
kv_heads = 2
experts = 4
top_k = 2
expert_ffn = 32
[router]
renormalise = true
[optimizer]
lr = 0.01
[batch]
global = 4
micro = 2
END

echo "- export needs a run with a checkpoint"
expect 2 "$moehost" export nothing hf
expect 2 "$moehost" export
expect 2 "$moehost" export a b --dtype f16

echo "- a run becomes a folder, in BF16 and in F32"
expect 0 "$moehost" run tiny.ini --out run
expect 0 "$moehost" export run hf-bf16
expect 0 "$moehost" export run hf --dtype f32
[ -f hf/config.json ] && [ -f hf/model.safetensors ] || fail "no files in hf"
grep -q '"model_type": "mixtral"' hf/config.json || fail "config.json names no family"
[ "$(wc -c <hf/model.safetensors)" -gt "$(wc -c <hf-bf16/model.safetensors)" ] || fail "BF16 is no smaller"

echo "- a folder with a model is not overwritten by accident; other files stay"
echo '{}' >hf/tokenizer.json
expect 2 "$moehost" export run hf --dtype f32
says 'give --overwrite'
expect 0 "$moehost" export run hf --dtype f32 --overwrite
[ -f hf/tokenizer.json ] || fail "the tokenizer is gone"

echo "- an export that fails leaves the model that was there as it was"
cp -r hf hf-kept
expect 1 sh -c "ulimit -f 64; exec '$moehost' export run hf --overwrite"
says 'model.safetensors.part: cannot write data: File too large'
diff -r hf hf-kept || fail "a failed export changed the folder"
expect 0 "$moehost" export run hf-kept --overwrite
cmp hf-kept/model.safetensors hf-bf16/model.safetensors || fail "not the BF16 model"

echo "- import writes a recipe, once"
expect 0 "$moehost" import hf
[ -f hf.ini ] || fail "no hf.ini"
expect 2 "$moehost" import hf
says 'give --overwrite or -o another file'
expect 0 "$moehost" import hf --overwrite
expect 0 "$moehost" import hf/ -o other.ini
expect 0 "$moehost" import hf -oother.ini --overwrite
expect 2 "$moehost" import hf -o
says '-o needs a value'
expect 2 "$moehost" import hf -x
says "unknown option '-x'"
grep -q "^weights = .*/hf\$" hf.ini || fail "the recipe does not name the weights"

echo "- the recipe waits for its data"
expect 2 "$moehost" check hf.ini
says 'train'
data="--set data.train=text.txt --set data.format=bytes --set data.seq_len=32 --set batch.global=4 --set batch.micro=2"
expect 0 "$moehost" check hf.ini $data

echo "- a run starts from the weights: step 1 of it is step 4 of the first run, but for the data's place"
expect 0 "$moehost" run hf.ini $data --set run.steps=1 --out from-hf
grep -q 'starting from the weights of' out.txt || fail "the run does not say where its weights come from"
expect 0 "$moehost" run tiny.ini --steps 1 --out fresh
a=$(first_loss from-hf) b=$(first_loss fresh)
[ "$(printf '%s\n%s\n' "$a" "$b" | sort -g | head -n 1)" = "$a" ] && [ "$a" != "$b" ] || fail "loss $a is no better than $b"

echo "- resume takes the checkpoint, not the weights, and generate too"
expect 0 "$moehost" run hf.ini $data --set run.steps=2 --out from-hf --resume
grep -q 'starting from' out.txt && fail "resume started from the weights again"
expect 0 "$moehost" generate hf.ini $data --prompt "the quick" --tokens 2

echo "- weights that do not fit are refused before the first step, and name the tensor"
expect 1 "$moehost" run hf.ini $data --set model.layers=1 --out wrong
says 'unknown to it: model.layers.1.'
[ ! -f wrong/metrics.jsonl ] || fail "a run without weights has left metrics"
expect 1 "$moehost" check hf.ini $data --set model.layers=1
says 'unknown to it: model.layers.1.'
expect 1 "$moehost" run hf.ini $data --set model.weights=nothing --out wrong
says 'nothing: cannot open: No such file or directory'
[ ! -f wrong/metrics.jsonl ] || fail "a run without weights has left metrics"

mkdir odd-value hollow
expect 1 "$moehost" run hf.ini $data --set model.weights=hollow --out wrong
says 'neither model.safetensors nor'
cp hf/model.safetensors odd-value
# the last four bytes of the last tensor: a NaN
printf '\0\0\300\177' | dd of=odd-value/model.safetensors bs=1 seek=$(($(wc -c <hf/model.safetensors) - 4)) conv=notrunc 2>/dev/null
expect 1 "$moehost" run hf.ini $data --set model.weights=odd-value --out wrong
says 'odd-value/model.safetensors: lm_head.weight\[[0-9]*,31\] is nan'
[ ! -f wrong/metrics.jsonl ] || fail "a run without weights has left metrics"

echo "- a folder without config.json, with a bad one, and one of an unknown model"
mkdir -p empty bad
expect 1 "$moehost" import empty
says 'config.json: cannot open'
expect 1 "$moehost" import nowhere
sed 's/"silu"/"gelu"/' hf/config.json >bad/config.json
expect 2 "$moehost" import bad
says 'bad/config.json:[0-9]*: hidden_act = "gelu": is not supported'
echo '{"a": ' >bad/config.json
expect 2 "$moehost" import bad
says 'bad/config.json:[0-9]*:[0-9]*: '
[ ! -f bad.ini ] || fail "a refused file has left a recipe"
mkdir -p 'with, comma' && cp hf/config.json 'with, comma'
expect 2 "$moehost" import 'with, comma'
says 'weights: one folder, not 2'
says 'nothing is written'
[ ! -f 'with, comma.ini' ] || fail "a recipe that is refused was written"
mkdir -p './-odd name' && cp hf/* './-odd name'
expect 0 "$moehost" import './-odd name' -o odd.ini
expect 0 "$moehost" check odd.ini $data

echo "- another checkpoint than the last, and one in the place of the run"
expect 0 "$moehost" run tiny.ini --set checkpoint.every=1 --set checkpoint.keep=3 --out steps
expect 0 "$moehost" export steps hf-2 --ckpt steps/ckpt/step-00000002
grep -q 'step 2 of steps' out.txt || fail "not step 2"
expect 2 "$moehost" export steps/ckpt/step-00000002 hf-3
says 'is a checkpoint, not the directory of a run; give: moehost export .*/steps hf-3 --ckpt steps/ckpt/step-00000002'
expect 2 "$moehost" export steps hf-3 --ckpt steps
says 'steps: is the directory of a run'
[ ! -d hf-3 ] || fail "a refused export has made a folder"

echo "- tokens that begin and end a text, and the longest sequence, are those of the weights' config.json"
grep -q '"eos_token_id": null' hf/config.json || fail "ids from nowhere"
grep -q '"max_position_embeddings": 32,' hf/config.json || fail "not the length of the recipe"
mkdir -p base
cp hf/* base
sed -i 's/"bos_token_id": null/"bos_token_id": 1/; s/"eos_token_id": null/"eos_token_id": [2, 3]/
    s/"max_position_embeddings": 32/"max_position_embeddings": 4096/' base/config.json
expect 0 "$moehost" import base
expect 0 "$moehost" run base.ini $data --set run.steps=1 --out from-base
expect 0 "$moehost" export from-base hf-base
tr -d ' \n' <hf-base/config.json >flat.json
for what in '"bos_token_id":1,' '"eos_token_id":\[2,3\],' '"pad_token_id":null,' '"max_position_embeddings":4096,'; do
    grep -q "$what" flat.json || { cat flat.json >&2; fail "the export lacks $what"; }
done
sed -i 's/4096/16/' base/config.json
expect 0 "$moehost" export from-base hf-base --overwrite
grep -q '"max_position_embeddings": 32,' hf-base/config.json || fail "not the larger length"
sed -i 's/"bos_token_id": 1/"bos_token_id": "one"/' base/config.json
expect 1 "$moehost" export from-base hf-base --overwrite
says 'base/config.json: bos_token_id is neither'
rm base/config.json
expect 0 "$moehost" export from-base hf-base --overwrite
grep -q '"eos_token_id": null' hf-base/config.json || fail "ids from nowhere"

echo "- a model that no family has is refused with what does not fit"
expect 0 "$moehost" run tiny.ini --set model.qkv_bias=true --set router.scale=2 --out mixed
expect 2 "$moehost" export mixed hf-mixed
says 'the nearest, mixtral, lacks: scale = 2, biases of attention'
[ ! -d hf-mixed ] || fail "a refused export has made a folder"

echo "- a damaged checkpoint is refused"
printf 'x' | dd of="$(echo run/ckpt/step-*/model.safetensors)" bs=1 seek=5000 conv=notrunc 2>/dev/null
expect 1 "$moehost" export run hf-damaged
[ ! -f hf-damaged/config.json ] || fail "a damaged checkpoint has become a model"
echo ok
