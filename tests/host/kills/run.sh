#!/bin/sh
# Kills training N times and resumes it, then compares it with a run that nobody killed (kills.c).
# run.sh N [BUILD_DIR]: tests/host/kills/run.sh 50
set -eu
build=${2:-$(dirname "$0")/../../../build}
exec "$build/tests/host/kills/kills" "$build/moehost" "$build/tests/host/kills/work" "$1"
