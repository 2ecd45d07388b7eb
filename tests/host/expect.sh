# shellcheck shell=sh disable=SC2034 # want and code are for whoever sources this
# What the tests of the whole program share; sourced after `cd` into their folder.

fail() {
    echo "FAILED: $*" >&2
    exit 1
}
# expect CODE COMMAND...: runs it, output in out.txt and err.txt
expect() {
    want=$1
    shift
    code=0
    "$@" >out.txt 2>err.txt || code=$?
    [ "$code" = "$want" ] || { cat out.txt err.txt >&2; fail "exit code $code, not $want: $*"; }
}
# put_text LINES: text.txt, to train on
put_text() {
    i=0
    while [ $i -lt "$1" ]; do
        echo "the quick brown fox number $i jumps over the lazy dog"
        i=$((i + 1))
    done >text.txt
}
# put_tiny GLOBAL: tiny.ini, a small model on text.txt with this many sequences a step
put_tiny() {
    cat >tiny.ini <<END
[run]
steps = 6
log_every = 2
eval_every = 3
eval_batches = 2
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
expert_bias = true
aux_coef = 0.01
[optimizer]
lr = 0.01
[batch]
global = $1
micro = 2
[checkpoint]
every = 3
END
}
