#!/usr/bin/env bash
# Builds a release in build/release and runs one benchmark. Standard output has only what the
# benchmark prints; messages of the build go to build/bench.log.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

names=(overhead efficiency step layers solve forecast plan schedules ranks)

usage() {
    cat <<END
usage: bash bench/run.sh NAME [--json] [--quick] [more options]

  overhead    microseconds per task in steps of empty cells, up to 100,000 cells
  efficiency  steps of cells that busy-wait 1 ms, against the schedule's lower bound
  step        training steps of a convolutional network and a multilayer perceptron:
              time, bound, memory, and the rates of their kernels
  layers      every operator alone on one core: its rate beside what the machine can do
  solve       cutting 1,000 layers into 64 partitions by each solver
  forecast    predicted training steps beside measured ones: time and memory
  plan        the pipe the planner chooses, measured beside all others
  schedules   the schedules (orders of tasks) side by side: time, bound and memory
  ranks       two MPI processes: messages, and steps of cells that busy-wait

  --json      one JSON object a line instead of tables
  --quick     a short run
  --help      after NAME: the options of that benchmark
END
}

case "${1-}" in
--help | -h)
    usage
    exit 0
    ;;
"")
    usage >&2
    exit 2
    ;;
esac

name=$1
shift
known=false
for each in "${names[@]}"; do
    [[ $each != "$name" ]] || known=true
done
if ! $known; then
    echo "bench/run.sh: no benchmark is called \"$name\"; there are: ${names[*]}" >&2
    exit 2
fi

log=build/bench.log
choices=(-DGRIDPIPE_BENCH=ON)
if [[ ! -f build/release/CMakeCache.txt ]]; then
    choices+=(-DGRIDPIPE_TESTS=OFF -DGRIDPIPE_EXAMPLES=OFF)
fi
mkdir -p build
if ! { cmake --preset release "${choices[@]}" &&
    cmake --build --preset release --parallel "$(nproc)" --target "bench_$name"; } >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    exit 1
fi
launch=()
if [[ $name == ranks ]]; then # each rank on a core of its own, unless one process needs both
    bind=core
    [[ " $* " == *" --models "* ]] && bind=none
    launch=(mpirun --oversubscribe --bind-to "$bind" -n 2)
    ((EUID)) || launch+=(--allow-run-as-root)
    export OMPI_MCA_btl=${OMPI_MCA_btl-vader,self}
fi
exec "${launch[@]}" "build/release/bench/bench_$name" "$@"
