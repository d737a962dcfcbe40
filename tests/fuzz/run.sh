#!/usr/bin/env bash
# Fuzzes the readers of foreign files and texts, one after the other:
#
#     bash tests/fuzz/run.sh SECONDS [safetensors | model_text | cluster]
#
# Needs clang with libFuzzer (Debian: clang, libclang-rt-14-dev). New inputs, and the input that
# ended a run with an error, stay in the build folder ($BUILD, else build/fuzz). With KEEP=1 the
# corpus becomes the smallest set of old and new inputs that reaches the same code.
# tests/test_files.c runs the whole corpus.
set -euo pipefail

usage="usage: run.sh SECONDS [safetensors | model_text | cluster]"
seconds=${1:?$usage}
shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(safetensors model_text cluster)

here=$(cd "$(dirname "$0")" && pwd)
export BUILD=${BUILD:-$(cd "$here/../.." && pwd)/build/fuzz}
mkdir -p "$BUILD"
make -s -f "$here/Makefile" -j "$(nproc)" all

# Leaks and undefined behaviour end a run like a crash. 4096 bytes reach every rule of all
# grammars.
for target in "${targets[@]}"; do
  corpus=$here/corpus/$target found=$BUILD/found/$target
  mkdir -p "$found"
  nice -n 19 "$BUILD/fuzz_$target" -max_total_time="$seconds" -max_len=4096 -timeout=10 \
    -rss_limit_mb=2048 -dict="$here/$target.dict" -artifact_prefix="$BUILD/$target-" \
    -print_final_stats=1 -verbosity=1 "$found" "$corpus" 2> "$BUILD/$target.log" ||
    { tail -n 40 "$BUILD/$target.log"; exit 1; }
  grep -E "^stat::|DONE|Done" "$BUILD/$target.log"
  if [ "${KEEP:-0}" = 1 ]; then
    merged=$BUILD/merged/$target
    rm -rf "$merged"
    mkdir -p "$merged"
    nice -n 19 "$BUILD/fuzz_$target" -set_cover_merge=1 -use_counters=0 -max_len=1024 "$merged" "$corpus" "$found" \
      2> "$BUILD/$target.merge.log"
    rm -f "$corpus"/*
    cp "$merged"/* "$corpus"/
    echo "$target: $(find "$corpus" -type f | wc -l) inputs in the corpus"
  fi
done
