#!/bin/sh
# layering.sh SOURCE_DIR SCRATCH_DIR: host -> core -> abi <- plugins, as the #include lines say it.
#   abi      includes abi and the C standard library
#   plugins  include abi, files of their own folder or of their kind's common/, and libraries; never core or host. Those
#            for CUDA (folders named cuda, X_cuda and nccl) include plugins/cuda too, and X_cuda what is in X; the header
#            of the execution model, plugins/cuda/kernel.h, the CPU's in tests/cuda/double
#   core     includes abi, core and libraries; no INI, no dlopen, no device library; and its code names no device
#   host     includes abi, core, host and libraries; no device library: it holds no arithmetic
# Then the same check must find each of a number of faults planted in a small tree, or it proves nothing.
set -u
source=$1 scratch=$2

standard=' assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg
 stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string tgmath threads time uchar wchar wctype '
# Headers through which a part would do what is not its business.
configuration='ini.h dlfcn.h getopt.h'
arithmetic='dnnl.h dnnl_types.h cblas.h mkl.h cuda.h cuda_runtime.h cublasLt.h cudnn.h nccl.h mpi.h CL/cl.h omp.h'
devices='"(cpu|cuda|rocm|opencl|metal)"|[^a-z_](cuda|nccl|cublas|dnnl|hip)[A-Z_][A-Za-z_]+ *\(|[^A-Za-z_](MPI_|__m(128|256|512))'

# includes DIR: "file<tab>line<tab>quote or angle<tab>path" for every include below DIR; "macro" where it is no literal.
includes() {
    find "$1" -type f \( -name '*.[ch]' -o -name '*.cc' -o -name '*.cpp' -o -name '*.hpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inc' \) \
        -exec awk '/^[ \t]*(#|%:)[ \t]*include/ {
            text = $0
            sub(/^[ \t]*(#|%:)[ \t]*include(_next)?[ \t]*/, "", text)
            kind = text ~ /^"[^"]+"/ ? "quote" : text ~ /^<[^>]+>/ ? "angle" : "macro"
            path = text
            if (kind == "quote") { sub(/^"/, "", path); sub(/".*/, "", path) }
            if (kind == "angle") { sub(/^</, "", path); sub(/>.*/, "", path) }
            printf "%s\t%d\t%s\t%s\n", FILENAME, FNR, kind, path
        }' {} +
}

fault() { echo "$at: $*"; }
listed() { # WORD LIST
    for word in $2; do [ "$word" = "$1" ] && return 0; done
    return 1
}
within() { # PATH DIR...: does the path lie below one of these?
    real=$(realpath -m "$1")
    shift
    for dir; do case $real in "$dir"/*) return 0 ;; esac done
    return 1
}
# found DIR...: below which of these does $path exist, with $dir (the includer's own folder) first? Prints it.
found() {
    for base; do [ -f "$base/$path" ] && echo "$base/$path" && return 0; done
    return 1
}

check_abi() {
    case $kind in
        quote) { [ -f "$dir/$path" ] && within "$dir/$path" "$root/abi/moe"; } || fault "abi includes \"$path\"" ;;
        angle) listed "${path%.h}" "$standard" || fault "abi includes <$path>: not of the C standard library" ;;
    esac
}

check_plugin() {
    below=${file#"$root/plugins/"}
    first=${below%%/*} rest=${below#*/}
    own=$root/plugins/$first common=$own
    case $rest in */*) own=$root/plugins/$first/${rest%%/*} common=$root/plugins/$first/common ;; esac
    set -- "$own" "$common"
    case $own in
        */cuda | */nccl) set -- "$@" "$root/plugins/cuda" ;;
        *_cuda) set -- "$@" "$root/plugins/cuda" "${own%_cuda}" ;;
    esac
    case $path in moe/*) [ -f "$root/abi/$path" ] || fault "no header <$path> in abi"; return ;; esac
    [ "$below $path" = "cuda/kernel.h model.h" ] && return
    if target=$(found "$dir" "$@"); then
        within "$target" "$@" || fault "a plugin includes \"$path\", which is not its own"
    elif [ "$kind" = quote ]; then
        fault "a plugin includes \"$path\", which is neither abi's nor its own"
    elif found "$root/core" "$root/host" "$root" >/dev/null; then
        fault "a plugin includes <$path> of core or host"
    fi
}

# check_inside PART FORBIDDEN DIR...: every file of the tree that is included lies below one of DIR.
check_inside() {
    part=$1 forbidden=$2
    shift 2
    case $path in moe/*) [ -f "$root/abi/$path" ] || fault "no header <$path> in abi"; return ;; esac
    if listed "$path" "$forbidden" && { [ "$kind" = angle ] || ! found "$dir" "$@" >/dev/null; }; then
        fault "$part includes <$path>"
    elif [ "$kind" = quote ]; then
        target=$(found "$dir" "$@") || { fault "$part includes \"$path\", which is none of its own"; return; }
        within "$target" "$@" || fault "$part includes \"$path\", which is none of its own"
    elif ! found "$@" >/dev/null && found "$root/core" "$root/host" "$root/plugins" "$root" >/dev/null; then
        fault "$part includes <$path> of another part"
    fi
}

check_core() { check_inside core "$configuration $arithmetic" "$root/core"; }
check_host() { check_inside host "$arithmetic" "$root/host" "$root/core"; }

# check_names: lines of core that name a device in code; comments may.
check_names() {
    find "$root/core" -type f -name '*.[ch]' -exec awk -v devices="$devices" '{
        code = $0
        gsub(/\/\*([^*]|\*[^\/])*\*\//, "", code)
        if (open) { if (!sub(/^.*\*\//, "", code)) next; open = 0 }
        if (sub(/\/\*.*$/, "", code)) open = 1
        sub(/\/\/.*$/, "", code)
        if ((" " code) ~ devices) printf "%s:%d: core names a device: %s\n", FILENAME, FNR, $0
    }' {} +
}

# check_tree ROOT: one line a fault.
check_tree() {
    root=$(realpath "$1")
    for part in abi plugins core host; do
        includes "$root/$part" | while IFS="$(printf '\t')" read -r file line kind path; do
            at="$file:$line" dir=${file%/*}
            [ "$kind" = macro ] && { fault "include of a macro cannot be checked: $path"; continue; }
            case $part in
                abi) check_abi ;;
                plugins) check_plugin ;;
                core) check_core ;;
                host) check_host ;;
            esac
        done
    done
    check_names
}

# ---- the real tree ----
for part in abi plugins core host; do
    n=$(includes "$source/$part" | wc -l)
    echo "$part: $n includes"
    [ "$n" -gt 5 ] || { echo "FAULT: almost nothing found in $part: the search is broken"; exit 1; }
done
check_tree "$source" >"$scratch.faults"
bad=$(wc -l <"$scratch.faults")
sed 's/^/FAULT: /' "$scratch.faults"

# ---- planted faults ----
# small_tree: a tree without fault.
small_tree() {
    rm -rf "$scratch"
    mkdir -p "$scratch/abi/moe" "$scratch/core/graph" "$scratch/core/exec" "$scratch/host" \
        "$scratch/plugins/router/one" "$scratch/plugins/router/two" "$scratch/plugins/router/common" \
        "$scratch/plugins/router/one_cuda" "$scratch/plugins/cuda"
    echo '#include <stdint.h>' >"$scratch/abi/moe/base.h"
    echo '#include "base.h"' >"$scratch/abi/moe/router.h"
    echo '#include <moe/base.h>' >"$scratch/core/graph/graph.h"
    printf '#include "graph/graph.h"\n#include <pthread.h>\n/* as "cuda" has it */\n' >"$scratch/core/exec/exec.c"
    printf '#include <ini.h>\n#include <graph/graph.h>\n#include "recipe.h"\n' >"$scratch/host/main.c"
    echo '#include <dlfcn.h>' >"$scratch/host/recipe.h"
    printf '#include <dnnl.h>\n#include <shared.h>\n#include "own.h"\n#include <moe/base.h>\n' >"$scratch/plugins/router/one/one.c"
    echo '#include <stdio.h>' >"$scratch/plugins/router/one/own.h"
    echo '#include <stdio.h>' >"$scratch/plugins/router/two/theirs.h"
    echo '#include <stdio.h>' >"$scratch/plugins/router/common/shared.h"
    echo '#include "model.h"' >"$scratch/plugins/cuda/kernel.h"
    printf '#include "kernel.h"\n#include "own.h"\n#include "shared.h"\n' >"$scratch/plugins/router/one_cuda/one.cu"
}

# plant FILE LINE: exactly this line must be refused.
plant() {
    small_tree
    echo "$2" >>"$scratch/$1"
    seen=$(check_tree "$scratch" | wc -l)
    [ "$seen" -eq 1 ] && return
    echo "FAULT: planted in $1 and reported $seen times: $2"
    bad=$((bad + 1))
}

small_tree
check_tree "$scratch" >"$scratch.small"
[ -s "$scratch.small" ] && sed 's/^/FAULT: in a tree without fault: /' "$scratch.small" && bad=$((bad + 1))
plant abi/moe/base.h '#include <pthread.h>'
plant abi/moe/base.h '#include "../../core/graph/graph.h"'
plant abi/moe/router.h '#include <moe/base.h>'
plant plugins/router/one/one.c '#include <graph/graph.h>'
plant plugins/router/one/one.c '#include "../../../core/graph/graph.h"'
plant plugins/router/one/one.c '#include <core/graph/graph.h>'
plant plugins/router/one/one.c '  #  include "recipe.h"'
plant plugins/router/one/one.c '#include "../two/theirs.h"'
plant plugins/router/one/one.c '#include <moe/absent.h>'
plant plugins/router/one/one.c '#include HEADER'
plant plugins/router/one/one.c '#include "kernel.h"'
plant plugins/router/one_cuda/one.cu '#include "model.h"'
plant plugins/router/one_cuda/one.cu '#include "theirs.h"'
plant plugins/cuda/kernel.h '#include "own.h"'
plant core/exec/exec.c '#include <ini.h>'
plant core/exec/exec.c '#include <dlfcn.h>'
plant core/exec/exec.c '#include "recipe.h"'
plant core/exec/exec.c '#include <recipe.h>'
plant core/exec/exec.c '#include "../../host/recipe.h"'
plant core/exec/exec.c '#include <dnnl.h>'
plant core/exec/exec.c 'int is = strcmp(device, "cuda") == 0;'
plant core/exec/exec.c 'void f(void) { cudaMalloc(0, 0); }'
plant host/main.c '#include <dnnl.h>'
plant host/main.c '#include "../plugins/router/one/own.h"'
plant host/main.c '#include <router/one/own.h>'
echo "$bad faults"
[ "$bad" -eq 0 ]
