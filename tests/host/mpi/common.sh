# shellcheck shell=sh disable=SC2034,SC2154 # for, and from, whoever sources this
# What the tests of several processes share; sourced after expect.sh, in their folder, with $moehost set.

# processes N COMMAND...: by mpirun, whose own notices are no matter here
processes() {
    many=$1
    shift
    mpirun --quiet --oversubscribe -n "$many" "$@"
}
# ranks N RUN...: moehost run on N processes
run_on() {
    many=$1
    shift
    processes "$many" "$moehost" run "$@" --set comm.plugin=mpi
}
# pid_of MPIRUN RANK: the process that is this rank
pid_of() {
    for pid in $(pgrep -P "$1"); do
        if tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qx "OMPI_COMM_WORLD_RANK=$2"; then echo "$pid"; fi
    done
}
# wait_until SECONDS COMMAND...: polls
wait_until() {
    tries=$(($1 * 10))
    shift
    while ! "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || fail "waited too long for: $*"
        sleep 0.1
    done
}
gone() { ! kill -0 "$1" 2>/dev/null; }

i=0
while [ $i -lt 400 ]; do
    echo "the quick brown fox number $i jumps over the lazy dog"
    i=$((i + 1))
done >text.txt

cat >tiny.ini <<'END'
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
global = 8
micro = 2
[checkpoint]
every = 3
END
