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
