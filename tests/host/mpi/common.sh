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

put_text 400
put_tiny 8
