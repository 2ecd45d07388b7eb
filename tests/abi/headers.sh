#!/bin/sh
# headers.sh ABI_DIR TEST_DIR SCRATCH_DIR: every header of the ABI alone, and a whole plugin, as C11, C17, C++11 and
# C++20 under each compiler found, with every warning an error - -Wpadded too, since a hole in a struct is a layout that
# compilers may disagree on. Then the same check must refuse headers with planted faults, or it proves nothing.
set -u
abi=$1 tests=$2 scratch=$3
warnings='-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wpadded -Werror'
compiled=0 faults=0

# compile COMPILER LANGUAGE STANDARD INCLUDE_DIR < source
compile() {
    # shellcheck disable=SC2086 # the warnings are words
    "$1" -x "$2" -std="$3" $warnings -I"$4" -fsyntax-only - 2>"$scratch/said"
}

# Does this compiler know this language? An empty program tells.
knows() {
    command -v "$1" >/dev/null && echo 'int main(void) { return 0; }' | "$1" -x "$2" -std="$3" -fsyntax-only - 2>/dev/null
}

report() {
    faults=$((faults + 1))
    echo "FAULT: $1"
    sed 's/^/    /' "$scratch/said" | head -n 20
}

check() { # COMPILER LANGUAGE STANDARD
    for header in "$abi"/moe/*.h; do
        name=${header##*/}
        compiled=$((compiled + 1))
        printf '#include <moe/%s>\n#include <moe/%s>\nextern int used;\n' "$name" "$name" | compile "$@" "$abi" ||
            report "moe/$name alone: $1 -std=$3"
    done
    compile "$@" "$abi" <"$tests/whole_plugin.c" || report "whole_plugin.c: $1 -std=$3"
}

# refuses WHAT TEXT: moe/base.h with this text before its end must not compile.
refuses() {
    rm -rf "$scratch/planted"
    mkdir -p "$scratch/planted" && cp -r "$abi/moe" "$scratch/planted/moe"
    { sed '$d' "$abi/moe/base.h" && printf '%s\n#endif\n' "$2"; } >"$scratch/planted/moe/base.h"
    echo '#include <moe/base.h>' | compile "$first" c c11 "$scratch/planted" && report "planted and not seen: $1"
}

rm -rf "$scratch"
mkdir -p "$scratch" || exit 1
first=
for pair in 'gcc c' 'clang c' 'g++ c++' 'clang++ c++'; do
    compiler=${pair% *} language=${pair#* }
    for year in 11 17 20; do
        [ "$language$year" = c20 ] && continue
        [ "$language$year" = c++17 ] && continue
        if ! knows "$compiler" "$language" "$language$year"; then
            echo "skipped: no $compiler -std=$language$year here"
            continue
        fi
        [ -n "$first" ] || first=$compiler
        check "$compiler" "$language" "$language$year"
        echo "checked: $compiler -std=$language$year"
    done
done
if [ -z "$first" ]; then
    echo "FAULT: no compiler found"
    exit 1
fi
refuses 'a hole in a struct' 'struct hole { uint32_t size; int64_t wide; };'
refuses 'a narrowing conversion' 'static inline uint32_t narrow(uint64_t x) { return x; }'
refuses 'a shadowed name' 'static inline int twice(int x) { { int x = 1; return x; } }'
refuses 'a missing type' 'struct lacks { absent_t x; };'
echo "$compiled headers compiled, $faults faults"
[ "$compiled" -gt 0 ] && [ "$faults" -eq 0 ]
