# shellcheck shell=bash
# The stages of tests/gpu/check, each of which adds its rows and never ends the script. They read what check has set:
# build, work, rows, double, jobs, skip, begun and deadline (in SECONDS), carry, arch, here, source_dir.
: "${build:=}" "${work:=}" "${rows:=}" "${double:=}" "${jobs:=}" "${skip:=}" "${begun:=0}" "${deadline:=}" "${carry:=}" "${arch:=}"
: "${here:=}" "${source_dir:=}" "${own_libraries:=}" # own_libraries: LD_LIBRARY_PATH as it was

# Until which second of the run a stage may last: what one leaves is there for those behind it.
declare -A until=([build]=120 [tests]=250 [quickstart]=300 [measure]=385 [torch]=410 [sanitizer]=476)

begin_stage() { # begin_stage STAGE: sets stage_end
    stage_end=$((begun + until[$1]))
    [ $stage_end -lt "$deadline" ] || stage_end=$deadline
}
left() { echo $((stage_end - SECONDS)); }
# Runs a command for at most so many seconds: 124 when it took longer, or when there were none.
within() { # within SECONDS COMMAND...
    local seconds=$1
    shift
    [ "$seconds" -gt 0 ] || return 124
    timeout -k 3 "$seconds" "$@"
}
out_of_time() { [ "$1" = 124 ] || [ "$1" = 137 ]; }
result_of() { # result_of EXIT_CODE
    if [ "$1" = 0 ]; then echo passed; elif out_of_time "$1"; then echo "out of time"; else echo failed; fi
}
last_line() { grep -v '^[[:space:]]*$' "$1" 2>/dev/null | tail -n 1 | cut -c 1-200; }

wanted() { # wanted STAGE: not skipped; else it is a row
    [[ $skip != *" $1 "* ]] && return 0
    add_row "$1" - skipped "" "--skip-$1"
    return 1
}

cuda_version() {
    local nvcc=${CUDA_HOME:-/usr/local/cuda}/bin/nvcc
    [ -x "$nvcc" ] || nvcc=nvcc
    "$nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p' | grep . || echo unknown
}

# ---- build ----
run_build() { # 1: there is nothing to run
    local code=0 at=$SECONDS target=gpu_check
    begin_stage build
    if [ -n "$carry" ]; then
        add_row build "sm_$arch" skipped "" "carried"
        return 0
    fi
    [ "$double" = 0 ] || target=gpu_check_double
    export -f build_tree
    source_dir=$source_dir double=$double arch=$arch work=$work within "$(left)" \
        bash -c 'build_tree "$@"' - "$build" $target || code=$?
    add_row build "sm_$arch" "$(result_of $code)" "$((SECONDS - at)) s" \
        "$([ $code = 0 ] || grep -m 1 -E 'error|FAILED' "$work/build.log" || last_line "$work/build.log")"
    return $code
}

# $work/home: the host beside the plugins of this run. Tests find device and plugins by the environment.
lay_out() {
    local plugins=$build/plugins
    [ "$double" = 0 ] || plugins=$build/double/plugins
    rm -rf "${work:?}/home" "${work:?}/logs"
    mkdir -p "$work/home" "$work/logs"
    cp "$build/moehost" "$work/home/moehost"
    ln -s "$plugins" "$work/home/plugins"
    export MOE_TEST_DEVICE=cuda MOE_TEST_PLUGINS=$plugins MOE_TEST_SOURCE=$source_dir MOE_TEST_RANKS=1
    export CK_FORK=no # one process has one context, and sanitizers see it
}

# ---- tests ----
# On the double some of each kind, since CTest runs them all there.
double_tests='^(cpu_op_(rmsnorm|join|bias)|device_cpu_stream|router_topk_bias|precision_linear|cases|oracle_router)$'

# A program of the list, for the seconds left: its log, and its exit code in a file.
run_job() { # run_job NAME COMMAND...
    local name=$1 code=0 at=$SECONDS
    shift
    within "$(left)" "$@" >"$work/logs/$name" 2>&1 || code=$?
    echo "$code $((SECONDS - at))" >"$work/logs/$name.code"
}

start_job() { # start_job NAME COMMAND...: when one of the jobs is free
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
    run_job "$@" &
}

# comm/nccl wants a GPU a rank. These programs start up to eight ranks; one process of it is tried everywhere.
many_ranks='^(comm_nccl_threads|dispatchers)$'
nccl_dir=tests/plugins/comm/nccl
gpus() { nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true; }

# A program of tests that has checked nothing has not passed.
code_of() { # code_of NAME
    local code=124 seconds
    # shellcheck disable=SC2034 # seconds: the rest of the line
    [ ! -f "$work/logs/$1.code" ] || read -r code seconds <"$work/logs/$1.code"
    if [ "$code" = 0 ] && grep -q '^100%: Checks: 0,' "$work/logs/$1"; then code=1; fi
    echo "$code"
}

tests_of() { # tests_of KIND: names
    local only=. but=$many_ranks
    [ "$double" = 0 ] || only=$double_tests
    [ "$double" = 1 ] || [ "$(gpus)" -lt 8 ] || but='^$'
    awk -F '\t' -v kind="$1" -v only="$only" -v but="$but" '$1 == kind && $2 ~ only && $2 !~ but { print $2 }' \
        "$build/tests/gpu/tests.txt"
    [ "$1$double" != conformance0 ] || [ ! -x "$build/$nccl_dir/start_ranks" ] || echo nccl_one_rank
}
path_of() { awk -F '\t' -v name="$1" '$2 == name { print $3 }' "$build/tests/gpu/tests.txt"; }

start_test() { # start_test NAME
    if [ "$1" = nccl_one_rank ]; then
        start_job "$1" env -u CK_FORK "$build/$nccl_dir/start_ranks" 1 "$build/$nccl_dir/test_comm_nccl"
    elif [[ $1 =~ $many_ranks ]]; then
        start_job "$1" env -u CK_FORK "$build/$(path_of "$1")"
    else
        start_job "$1" "$build/$(path_of "$1")"
    fi
}

kind_rows() { # kind_rows KIND NAME...: a row for all, and one for each that has not passed
    local kind=$1 name code checks=0 passed=0 worst=passed
    shift
    for name; do
        code=$(code_of "$name")
        if [ "$code" = 0 ]; then passed=$((passed + 1)); fi
        [ "$code" = 0 ] || [ "$worst" = failed ] || worst=$(result_of "$code")
        checks=$((checks + $(sed -n 's/^[0-9]*%: Checks: \([0-9]*\),.*/\1/p' "$work/logs/$name" 2>/dev/null | tail -n 1 |
            grep . || echo 0)))
    done
    if [ $# = 0 ]; then
        add_row tests "$kind" missing "" "no program of this kind is built"
        return
    fi
    add_row tests "$kind" "$worst" "$passed of $# programs" "$checks checks"
    for name; do
        code=$(code_of "$name")
        [ "$code" = 0 ] || add_row tests "$name" "$(result_of "$code")" "exit code $code" \
            "$(grep -m 1 -E ':[EF]:|moehost: ' "$work/logs/$name" | cut -c 1-200 || last_line "$work/logs/$name")"
    done
}

run_tests() {
    local kind name golden=$source_dir/tests/oracle/golden
    begin_stage tests
    if [ "$double" = 1 ]; then # one model
        mkdir -p "$work/golden"
        ln -sfn "$golden/olmoe_linear" "$work/golden/olmoe_linear"
        golden=$work/golden
    fi
    # the longest first
    start_job parity_models sh "$source_dir/tests/oracle/parity.sh" "$work/home/moehost" \
        "$build/tests/oracle/oracle_compare" "$golden" "$work/parity"
    for kind in gradient operation conformance parity; do
        for name in $(tests_of $kind); do start_test "$name"; done
    done
    wait
    for kind in operation gradient conformance; do
        # shellcheck disable=SC2046 # names are words
        kind_rows $kind $(tests_of $kind)
    done
    # shellcheck disable=SC2046
    kind_rows parity parity_models $(tests_of parity)
    [ "$double" = 0 ] && [ "$(gpus)" -lt 8 ] || return 0
    while read -r name; do
        add_row tests "$name" skipped "" "its eight ranks want eight GPUs, here is $(gpus)"
    done < <(awk -F '\t' -v many="$many_ranks" '$2 ~ many { print $2 }' "$build/tests/gpu/tests.txt")
}

# ---- quickstart ----
# Limits as README and CI have them: 300 steps bring the validation loss to 2.2.
run_quickstart() {
    local code=0 at=$SECONDS loss limit=2.2 set=(--set device.plugin=cuda) run=$work/quickstart
    begin_stage quickstart
    if [ "$double" = 1 ]; then # two steps of a small model: near the loss of a guess among 256 bytes
        limit=5.7
        set+=(--steps 2 --set optimizer.warmup=0 --set data.seq_len=8 --set model.layers=1 --set model.hidden=16 --set model.heads=2
            --set model.kv_heads=1 --set model.head_dim=8 --set model.expert_ffn=16 --set model.experts=4
            --set batch.global=2 --set batch.micro=2 --set run.eval_batches=1 --set run.eval_every=1)
    fi
    rm -rf "$run"
    within "$(left)" "$work/home/moehost" run "$source_dir/recipes/quickstart.ini" "${set[@]}" \
        --out "$run" >"$work/logs/quickstart" 2>&1 || code=$?
    loss=$(tail -n 1 "$run/metrics.jsonl" 2>/dev/null | sed -n 's/.*"val_loss": *\([0-9.]*\).*/\1/p')
    if [ $code = 0 ] && ! awk -v loss="$loss" -v limit=$limit 'BEGIN { exit !(loss > 0 && loss <= limit) }'; then code=1; fi
    add_row quickstart "train recipes/quickstart.ini" "$(result_of $code)" "$((SECONDS - at)) s" \
        "validation loss ${loss:-none}, at most $limit$([ $code = 0 ] || echo ": $(last_line "$work/logs/quickstart")")"
    [ $code = 0 ] || return 0
    within "$(left)" "$work/home/moehost" generate "$run/recipe.ini" --prompt "This License " --tokens 8 \
        >"$work/logs/generate" 2>&1 || code=$?
    [ -s "$work/logs/generate" ] || code=1
    add_row quickstart "generate" "$(result_of $code)" "" "$([ $code = 0 ] || last_line "$work/logs/generate")"
}

# ---- measure ----
bench_part() { # bench_part PART...: a process for parts that need each other's peaks
    local code=0 part what tiny=()
    [ "$double" = 0 ] || tiny=(--tiny)
    within "$(left)" "$build/tests/gpu/gpu_bench" "${tiny[@]}" "$@" >"$work/logs/bench_$1.jsonl" 2>"$work/logs/bench_$1" ||
        code=$?
    json_rows <"$work/logs/bench_$1.jsonl" >"$work/bench.tsv"
    while IFS=$'\t' read -r part what; do # every row of the list, also where the program ended before
        if ! grep -P "^\Q$part\E\t\Q$what\E\t" "$work/bench.tsv" >>"$rows"; then
            if out_of_time $code; then
                add_row "$part" "$what" "out of time" "" ""
            else
                add_row "$part" "$what" failed "" "gpu_bench ended with exit code $code: $(last_line "$work/logs/bench_$1")"
            fi
        fi
    done < <("$build/tests/gpu/gpu_bench" --list "$@")
}

# tokens/s of a whole step by moehost bench: its rows "tokens" (without the optimiser) and the two times.
bench_step() {
    local code=0 set=(--steps 5 --runs 1) state=measured
    if [ "$double" = 1 ]; then # device cpu: what bench holds a step beside, products of 2048^3, takes minutes there
        state="not measured"
        set=(--steps 1 --runs 1 --set device.plugin=cpu --set data.seq_len=8 --set model.layers=1 --set model.hidden=16 --set model.heads=2
            --set model.kv_heads=1 --set model.head_dim=8 --set model.expert_ffn=16 --set model.experts=4
            --set model.top_k=2 --set model.vocab=256 --set batch.global=2 --set batch.micro=2)
    fi
    within "$(left)" "$work/home/moehost" bench "$here/step.ini" "${set[@]}" --json \
        >"$work/logs/bench_step.jsonl" 2>"$work/logs/bench_step" || code=$?
    awk -v state="$state" '
        function value() { return match($0, /"value":[-+0-9.eE]+/) ? substr($0, RSTART + 8, RLENGTH - 8) : "" }
        /"name":"tokens"/ { tokens = value() }
        /"name":"step.time"/ { step = value() }
        /"name":"step_with_optimizer.time"/ { whole = value() }
        function row(what, v) {
            if (v > 0) printf "step\t%s\t%s\t%s\t\n", what, state, state == "measured" ? sprintf("%.0f tokens/s", v) : ""
        }
        END {
            row("step.ini, forward and backward", tokens)
            if (whole > 0) row("step.ini, with AdamW", tokens * step / whole)
        }' "$work/logs/bench_step.jsonl" >"$work/step.tsv"
    [ "$(wc -l <"$work/step.tsv")" = 2 ] || [ $code != 0 ] || code=1
    if [ $code = 0 ]; then
        cat "$work/step.tsv" >>"$rows"
    else
        add_row step step.ini "$(result_of $code)" "" "$(grep 'moehost: ' "$work/logs/bench_step" | tail -n 1)"
    fi
}

run_measure() {
    begin_stage measure
    bench_part memory
    bench_part layer
    bench_step
    bench_part products attention # the longest
}

# ---- PyTorch, where it is ----
run_torch() {
    local code=0 python=${PYTHON:-python3}
    begin_stage torch
    if [ "$double" = 1 ]; then
        add_row torch "grouped_mm and plain layer" "not measured" "" "needs a GPU"
        return
    fi
    within "$(left)" env LD_LIBRARY_PATH="$own_libraries" "$python" "$here/torch_layer.py" >"$work/logs/torch.jsonl" 2>"$work/logs/torch" || code=$?
    json_rows <"$work/logs/torch.jsonl" >>"$rows"
    if [ $code = 3 ] || [ $code = 127 ] || [ $code = 126 ]; then
        add_row torch "grouped_mm and plain layer" skipped "" "no PyTorch with CUDA here"
    elif [ $code != 0 ]; then
        add_row torch "torch_layer.py" "$(result_of $code)" "" "$(last_line "$work/logs/torch")"
    fi
}

# ---- compute-sanitizer ----
# Small cases: every measured operation once at tiny shapes, and tests of the operations that index by data. racecheck
# without products: shared memory of cuBLASLt's kernels is not ours to judge.
sanitizer_tests='^(cpu_op_(rmsnorm|rows|loss|embed|attention|swiglu_prob)|router_topk_choice)$'

sanitizer_programs() { # sanitizer_programs TOOL: name<TAB>command
    local parts="memory attention products layer"
    [ "$1" != racecheck ] || parts="memory attention"
    printf 'gpu_bench\t%s --tiny %s\n' "$build/tests/gpu/gpu_bench" "$parts"
    awk -F '\t' -v only="$sanitizer_tests" -v build="$build" '$2 ~ only { print $2 "\t" build "/" $3 }' \
        "$build/tests/gpu/tests.txt"
}

run_sanitizer() {
    local tool name command code clean n worst note
    local sanitizer=${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer
    [ -x "$sanitizer" ] || sanitizer=$(command -v compute-sanitizer || true)
    if [ "$double" = 1 ]; then
        add_row sanitizer "memcheck, racecheck, synccheck" "not measured" "" "needs a GPU"
        return
    fi
    if [ -z "$sanitizer" ]; then
        add_row sanitizer "memcheck, racecheck, synccheck" missing "" "no compute-sanitizer on PATH nor in CUDA_HOME"
        return
    fi
    begin_stage sanitizer
    for tool in memcheck racecheck synccheck; do
        while IFS=$'\t' read -r name command; do
            # shellcheck disable=SC2086 # words
            start_job "$tool.$name" "$sanitizer" --tool $tool --error-exitcode 9 $command </dev/null
        done < <(sanitizer_programs $tool)
    done
    wait
    for tool in memcheck racecheck synccheck; do
        clean=0 n=0 worst=passed note=""
        while IFS=$'\t' read -r name command; do
            n=$((n + 1))
            code=$(code_of "$tool.$name")
            if [ "$code" = 0 ]; then clean=$((clean + 1)); else note+="$name: $(result_of "$code") ($code); "; fi
            [ "$code" = 0 ] || [ "$worst" = failed ] || worst=$(result_of "$code")
        done < <(sanitizer_programs $tool)
        add_row sanitizer $tool "$worst" "$clean of $n programs" "$note"
    done
}
