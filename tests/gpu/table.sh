# shellcheck shell=bash
# The table of tests/gpu/check: its rows, and how they are written. Sourced by check, which has set `rows`, a file of
# lines "part<TAB>what<TAB>result<TAB>figure<TAB>note".
# Results: passed, measured, "not measured" (it ran, where its time says nothing), skipped; of these a check may be made.
# failed, missing, "out of time": the check has not passed.
: "${rows:=}"

add_row() { # add_row PART WHAT RESULT FIGURE NOTE: "|" would end a cell
    local part=$1 what=$2 result=$3 figure=$4 note
    note=$(printf '%s' "$5" | tr '\t\n' '  ' | tr '|' '/')
    printf '%s\t%s\t%s\t%s\t%s\n' "$part" "$what" "$result" "$figure" "$note" >>"$rows"
    printf '%-11s %-55s %-12s %s\n' "$part" "$what" "$result" "$figure" >&2
}

# Rows of gpu_bench and torch_layer.py: one JSON object a line, on stdin. An object that has no state is as good as none.
json_rows() {
    awk '
    function field(name, at) { # the value of a key, without quotes
        if (!match($0, "\"" name "\":(\"([^\"\\\\]|\\\\.)*\"|[-+0-9.eE]+)")) return ""
        at = substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3)
        if (substr(at, 1, 1) == "\"") at = substr(at, 2, length(at) - 2)
        gsub(/\\/, "", at)
        gsub(/[|\t]/, "/", at)
        return at
    }
    /^\{/ && field("state") != "" {
        state = field("state"); figure = ""; note = field("why")
        if (state == "ran") state = "not measured"
        if (state == "measured") {
            value = field("value") + 0
            figure = sprintf(value >= 1000 ? "%.0f %s" : value >= 100 ? "%.1f %s" : "%.3g %s", value, field("unit"))
            if (field("fraction") != "") note = sprintf("%.1f%% of %s", 100 * field("fraction"), field("of"))
        }
        printf "%s\t%s\t%s\t%s\t%s\n", field("part"), field("row"), state, figure, note
    }'
}

# Is every row one of those that a check has when it passed?
all_passed() {
    ! grep -qvP '^[^\t]*\t[^\t]*\t(passed|measured|not measured|skipped)\t' "$rows" && [ -s "$rows" ]
}

# write_table FILE: heading lines come on stdin.
write_table() {
    {
        cat
        echo
        echo "| part | what | result | figure | |"
        echo "|---|---|---|---|---|"
        awk -F '\t' '{ printf "| %s | %s | %s | %s | %s |\n", $1, $2, $3, $4, $5 }' "$rows"
        echo
        awk -F '\t' '{ n[$3]++ } END { for (r in n) printf "%s%d %s", (k++ ? ", " : ""), n[r], r; print "." }' "$rows"
    } >"$1"
}
