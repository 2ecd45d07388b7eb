#!/bin/sh
# binaries.sh PLUGINS_DIR [PROGRAM]: every built plugin defines one dynamic symbol, the entry, and the program holds no
# plugin: neither linked, nor a library that only a plugin may use, nor a static copy of one.
set -u
plugins=$1 program=${2:-}
entry=moe_plugin_entry_v0
seen=0 faults=0

fault() {
    echo "FAULT: $*"
    faults=$((faults + 1))
}

for so in "$plugins"/*/*.so; do
    [ -f "$so" ] || continue
    seen=$((seen + 1))
    symbols=$(nm -D --defined-only "$so" | awk '{ sub(/@.*/, "", $NF); print $NF }') || fault "$so: nm cannot read it"
    [ "$symbols" = "$entry" ] || fault "$so defines $(echo "$symbols" | tr '\n' ' ')"
done
[ "$seen" -gt 0 ] || fault "no plugin in $plugins"

if [ -n "$program" ]; then
    needed=$(readelf -d "$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p')
    [ -n "$needed" ] || fault "$program: readelf shows no library"
    for lib in $needed; do
        case ${lib##*/} in libdnnl* | libcuda* | libnccl* | libmpi* | libcublas*) fault "$program is linked with $lib" ;; esac
        for so in "$plugins"/*/*.so; do [ "${lib##*/}" = "${so##*/}" ] && fault "$program is linked with plugin $lib"; done
    done
    nm --defined-only "$program" 2>/dev/null | grep -q " $entry\$" && fault "$program holds a plugin's entry"
else
    echo "skipped: this build has no program moehost"
fi
echo "$seen plugins, $faults faults"
[ "$faults" -eq 0 ]
