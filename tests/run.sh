#!/usr/bin/env bash
# The test command: installs what is missing from Debian, builds, runs every test, and ends with one
# line "N passed, N failed, N skipped". Each Criterion test counts as one, and so does each step.
# Messages go to build/test-logs/; those of a failure are shown as well.
#
#   bash tests/run.sh            everything
#   bash tests/run.sh --quick    on cores alone: without kernels and emulated GPUs, sanitizers,
#                                release build and installation; fewer draws of random tests, and
#                                of the long example its short form once
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

source_dir=$PWD
logs=$source_dir/build/test-logs
cores=$(nproc)
passed=0 failed=0 skipped=0

quick=false
case "${1-}" in
"") ;;
--quick) quick=true ;;
*)
    echo "usage: bash tests/run.sh [--quick]" >&2
    exit 2
    ;;
esac

rm -rf "$logs"
mkdir -p "$logs"

# Nothing of the caller's environment steers the runtime.
for variable in "${!STARPU_@}" "${!OMP_@}"; do
    unset "$variable"
done
export STARPU_SILENT=1 STARPU_HOSTNAME=gridpipe LC_ALL=C
# Nor do hwloc's plugins: one looks for displays, which where names resolve slowly takes seconds at
# every start of StarPU, and they lose some memory whenever they are unloaded.
export HWLOC_PLUGINS_PATH=$logs/none

# A StarPU home of its own: two first starts at once on an empty one abort.
use_home() {
    export STARPU_HOME=$source_dir/build/starpu-home/$1
    mkdir -p "$STARPU_HOME"
}

show() {
    tail -n "${2:-40}" "$1" | sed 's/^/    | /'
}

# step NAME COMMAND...: one test. Status 77 skips it; the last line of its output is the reason.
step() {
    local name=$1 begin=$SECONDS status
    local log="$logs/${name//[^a-zA-Z0-9]/-}.log"
    shift
    use_home "${name//[^a-zA-Z0-9]/-}"
    ("$@") >"$log" 2>&1
    status=$?
    case $status in
    0)
        passed=$((passed + 1))
        echo "ok    $name ($((SECONDS - begin)) s)"
        ;;
    77)
        skipped=$((skipped + 1))
        echo "skip  $name: $(tail -n 1 "$log")"
        ;;
    *)
        failed=$((failed + 1))
        echo "FAIL  $name (status $status, $log)"
        show "$log"
        ;;
    esac
    return $status
}

# together COMMAND NAME...: runs COMMAND with each name, as many at once as there are cores. What one
# prints appears when it is done.
together() {
    local command=$1 name at counts
    shift
    for name; do
        at=$logs/together-${command}-${name##*/}
        (
            passed=0 failed=0 skipped=0
            "$command" "$name" >"$at.said" 2>&1
            echo "$passed $failed $skipped" >"$at.counts"
            flock "$logs/lock" cat "$at.said"
        ) &
        while (($(jobs -rp | wc -l) >= cores)); do
            wait -n
        done
    done
    wait
    for name; do
        if ! read -ra counts <"$logs/together-${command}-${name##*/}.counts"; then
            echo "FAIL  $command ${name##*/}: it has left no counts"
            counts=(0 1 0)
        fi
        passed=$((passed + counts[0])) failed=$((failed + counts[1])) skipped=$((skipped + counts[2]))
    done
}

finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    exit $((failed > 0))
}

# --- what has to be there -------------------------------------------------------------------------

packages=(gcc g++ libc6-dev make ninja-build cmake pkg-config binutils util-linux libstarpu-dev
    libhwloc-dev libdnnl-dev libcriterion-dev libjansson-dev zlib1g-dev dataset-fashion-mnist
    valgrind libc6-dbg pajeng openmpi-bin libopenmpi-dev openssh-client iproute2)

install_packages() {
    local missing=() package as_root=()
    for package in "${packages[@]}"; do
        [[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] ||
            missing+=("$package")
    done
    ((${#missing[@]})) || return 0
    if (($(id -u) != 0)); then
        as_root=(sudo)
    fi
    echo "installing ${missing[*]}"
    "${as_root[@]}" apt-get update -q &&
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -q -y --no-install-recommends "${missing[@]}"
}

# --- building -------------------------------------------------------------------------------------

# A folder that is there keeps its generator.
export CMAKE_GENERATOR=${CMAKE_GENERATOR-Ninja}

build() {
    cmake --preset "$1" && cmake --build --preset "$1" --parallel "$cores" "${@:2}"
}

build_without_warnings() {
    build "$@" 2>&1 | tee "$logs/build.out" || return 1
    ! grep -n 'warning:' "$logs/build.out"
}

# Every .cu file has been compiled for both architectures; and the library is linked with CUDA only
# where StarPU has it.
cuda_kernels() {
    local cache=build/dev/CMakeCache.txt objects=build/dev/CMakeFiles/gridpipe_cuda_kernels.dir
    local commands=build/dev/compile_commands.json missing source
    missing=$(sed -n 's/^gridpipe_cuda_missing:INTERNAL=//p' "$cache")
    if [[ -n $missing ]]; then
        echo "$missing"
        return 77
    fi
    grep -q 'sm_80' "$commands" && grep -q 'sm_90' "$commands" || return 1
    while IFS= read -r source; do
        [[ $objects/$source.o -nt $source ]] || { echo "not compiled: $source" && return 1; }
    done < <(find graph codelets sched balance -name '*.cu')
    grep -q '^gridpipe_starpu_has_cuda:INTERNAL=1' "$cache" ||
        ! readelf -d build/dev/libgridpipe.so | grep -E 'NEEDED.*(cudart|cublas|cudnn)'
}

mpi_is_there() {
    grep -q '^gridpipe_mpi_missing:INTERNAL=$' build/dev/CMakeCache.txt
}

# The program that README.md shows is examples/readme.c, less the comment that says what it is.
documented_program() {
    diff <(sed -n '/^```c$/,/^```$/p' README.md | sed '/^```/d') \
        <(sed 1d examples/readme.c)
}

# Not in build/release, whose choices are the user's.
build_release() {
    cmake --preset release -B build/test-release -DGRIDPIPE_TESTS=OFF -DGRIDPIPE_BENCH=OFF \
        -DGRIDPIPE_WERROR=ON &&
        cmake --build build/test-release --parallel "$cores"
}

# What docs/adding-*.md walk through compiles. Each page has at least one struct.
documented_code() {
    local page code good=0
    for page in docs/adding-*.md; do
        code=$logs/$(basename "$page" .md).c
        sed -n '/^```c$/,/^```$/p' "$page" | sed '/^```/d' >"$code"
        grep -q '^const .* = {' "$code" || { echo "no struct in $page" && good=1; }
        gcc -std=gnu11 -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
            -I. -Iinclude -fsyntax-only "$code" || good=1
    done
    return $good
}

headers_alone() {
    local header good=0 mpi
    for header in include/gridpipe.h include/gridpipe/*.h; do
        mpi=()
        if [[ $header == */mpi.h ]]; then
            mpi_is_there || continue
            mapfile -t mpi < <(mpicc --showme:incdirs | tr ' ' '\n' | sed 's/^/-isystem/')
        fi
        gcc -std=c11 -pedantic-errors -Wall -Wextra -Werror -Iinclude "${mpi[@]}" -fsyntax-only \
            -x c "$header" || good=1
        g++ -std=c++11 -pedantic-errors -Wall -Wextra -Werror -Iinclude "${mpi[@]}" -fsyntax-only \
            -x c++ "$header" || good=1
    done
    cmake --build build/dev --target gridpipe_verify_interface_header_sets && return $good
}

# The other interface of oneDNN than this system's: compiled with its headers, which are on PyPI.
onednn_3() {
    local folder=$logs/onednn header
    mkdir -p "$folder"
    python3 -m pip download --quiet --no-deps --retries 0 --timeout 20 --dest "$folder" \
        "onednn-devel>=2025" >/dev/null 2>&1 && python3 -m zipfile -e "$folder"/*.whl "$folder" || {
        echo "the headers of oneDNN 3 cannot be downloaded (pip, onednn-devel)"
        return 77
    }
    header=$(find "$folder" -path '*/include/dnnl.h' | head -n 1)
    gcc -std=gnu11 -O2 -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Werror -I. \
        -Iinclude -I"$(dirname "$header")" -c codelets/cpu/dnnl.c -o "$folder/dnnl.o" &&
        nm "$folder/dnnl.o" | grep -q dnnl_memory_desc_clone
}

# --- tests ----------------------------------------------------------------------------------------

# Reads a TAP file: counts its tests, shows failures, and says why something was skipped.
count_tap() {
    local tap=$1 name=$2 line ran=0 bad=0 left=0 planned reason
    local -A test_of=() times=()
    while IFS= read -r line; do
        case $line in
        "not ok "*) bad=$((bad + 1)) ;;
        "ok "*"# SKIP"*)
            left=$((left + 1))
            line=${line#ok - } reason=${line#*# SKIP }
            test_of[$reason]=${line%%  # SKIP*}
            times[$reason]=$((${times[$reason]-0} + 1))
            ;;
        "ok "*) ran=$((ran + 1)) ;;
        esac
    done <"$tap"
    for reason in "${!times[@]}"; do
        if ((times[$reason] == 1)); then
            echo "skip  ${test_of[$reason]}: $reason"
        else
            echo "skip  $name, ${times[$reason]} tests: $reason"
        fi
    done
    planned=$(sed -n 's/^1\.\.\([0-9]*\)$/\1/p' "$tap")
    if ((ran + bad + left != ${planned:-0} || ${planned:-0} == 0)); then
        echo "FAIL  $name: $((ran + bad + left)) of ${planned:-0} tests reported"
        bad=$((bad + 1))
    fi
    passed=$((passed + ran)) failed=$((failed + bad)) skipped=$((skipped + left))
    tests_failed=$bad tests_ran=$ran
}

# A test program. What is tested on cores is not to go to the machine's GPUs. A program for a GPU is
# not run where there is none: each of its tests takes a tenth of a second to say so.
criterion_program() {
    local program=$1 name=${1##*/} status begin=$SECONDS gpus=(CUDA_VISIBLE_DEVICES=) tests
    : >"$logs/$name.tap"
    use_home "$name"
    if [[ $name == *_device ]]; then
        if [[ ! -e /dev/nvidiactl && ! -e /dev/dxg ]]; then
            tests=$("$program" --list | awk '/ tests?$/ { n += $(NF - 1) } END { print n }')
            echo "skip  $name, $tests tests: no CUDA device"
            skipped=$((skipped + tests))
            return
        fi
        gpus=()
    fi
    timeout 900 env "${gpus[@]}" "$program" -j1 --tap="$logs/$name.tap" >"$logs/$name.log" 2>&1
    status=$?
    count_tap "$logs/$name.tap" "$name"
    if ((tests_failed)); then
        echo "FAIL  $name: $tests_failed failed"
        awk '/^not ok/ { on = 1 } /^ok/ { on = 0 } on { print "    | " $0 }' "$logs/$name.tap"
        show "$logs/$name.log" 20
    elif ((status)); then
        failed=$((failed + 1))
        echo "FAIL  $name: status $status although no test failed"
        show "$logs/$name.log"
    else
        echo "ok    $name: $tests_ran passed ($((SECONDS - begin)) s)"
    fi
}

# Those that take longest, which are started first.
slow='submit|plan_search|products|profiles|pipes_e|cuda_operators|chain|vectors|tools|random'

# test_programs BUILD: its test programs, the slow ones first. A watched program is an emulated one
# that looks for races as well, so the emulated one is left to the sanitizers.
test_programs() {
    local all left_out=(-e '^$') watched
    $quick && left_out+=(-e '_(emulated|watched|device)$')
    for watched in "$1"/tests/test_*_watched; do
        left_out+=(-e "${watched%_watched}_emulated\$")
    done
    all=$(find "$1/tests" -maxdepth 1 -name 'test_*' -type f -executable |
        grep -vE "${left_out[@]}" | sort)
    grep -E "$slow" <<<"$all"
    grep -vE "$slow" <<<"$all"
}

criterion_tests() {
    local programs
    mapfile -t programs < <(test_programs build/dev)
    together one_test mpi_ranks "${programs[@]}"
}

# The ranks wait for each other much of their time, beside other tests.
one_test() {
    if [[ $1 == mpi_ranks ]]; then
        step "MPI ranks" mpi_ranks
    else
        criterion_program "$1"
    fi
}

short_run=(--epochs 1 --limit 1000 --batch 128)

# The short form trains a little, ends with the line of key=value pairs and beats guessing (0.1).
fashion_mnist() {
    local last
    "$1/examples/fashion_mnist" "${short_run[@]}" "${@:2}" >"$logs/fashion-mnist.out" || return 1
    cat "$logs/fashion-mnist.out"
    last=$(tail -n 1 "$logs/fashion-mnist.out")
    [[ $last =~ ^accuracy=(0\.[0-9]{4})\ epoch_s=[0-9.]+\ step_ms=[0-9.]+\ efficiency=[0-9.]+\ planned_bytes=[0-9]+\ peak_bytes=[0-9]+$ ]] &&
        [[ ${BASH_REMATCH[1]} > 0.3 ]]
}

# What is learnt does not depend on the cut: the same accuracy for every number of partitions.
same_accuracy() {
    local options first="" now
    for options in "--partitions 1" "--partitions 3" "--checkpoint never" "--balance 10,1"; do
        # shellcheck disable=SC2086
        now=$(build/dev/examples/fashion_mnist "${short_run[@]}" $options | tail -n 1) || return 1
        now=${now%% *}
        echo "$options: $now"
        [[ -z $first || $now == "$first" ]] || return 1
        first=$now
    done
}

wrong_options() {
    local options wrong=0
    while IFS= read -r options; do
        # shellcheck disable=SC2086
        build/dev/examples/fashion_mnist $options >"$logs/wrong.out" 2>&1
        if (($? != 2)) || ! grep -q '^fashion_mnist: ' "$logs/wrong.out"; then
            echo "not refused as it should be: $options"
            wrong=1
        fi
        cat "$logs/wrong.out"
    done <<'END'
--partitions 0
--partitions two
--partitions 12
--chunks -1
--chunks 4x
--checkpoint sometimes
--balance 4,8
--balance 4,,7
--balance 0,11
--balance 4,7 --partitions 3
--batch 0
--epochs 1.5
--lr 0
--lr nan
--lr 1e
--seed -1
--seed 18446744073709551616
--limit 0
--batch
--colour red
everything
END
    build/dev/examples/fashion_mnist --help | grep -q -- --checkpoint && return $wrong
}

# A damaged data file is an error with its name, status 1.
damaged_data() {
    local good=/usr/share/datasets/fashion-mnist dir=$logs/data name=t10k-labels-idx1-ubyte.gz
    local damage status=0
    for damage in missing empty short cut long type text; do
        rm -rf "$dir"
        mkdir -p "$dir"
        ln -s "$good"/*.gz "$dir"
        rm "$dir/$name"
        case $damage in
        empty) : >"$dir/$name" ;;
        short) gzip -dc "$good/$name" | head -c 500 | gzip >"$dir/$name" ;;
        cut) head -c 2000 "$good/$name" >"$dir/$name" ;;
        long) { gzip -dc "$good/$name" && echo more; } | gzip >"$dir/$name" ;;
        type) gzip -dc "$good/$name" | sed '1s/^\x00\x00\x08/\x00\x00\x0d/' | gzip >"$dir/$name" ;;
        text) echo "no data at all" >"$dir/$name" ;;
        esac
        build/dev/examples/fashion_mnist "${short_run[@]}" --data "$dir" >"$logs/damaged.out" 2>&1
        if (($? != 1)) || ! grep -q "^fashion_mnist: .*$name" "$logs/damaged.out"; then
            echo "not refused as it should be: $damage"
            status=1
        fi
        cat "$logs/damaged.out"
    done
    return $status
}

# Pipes over 2 to 4 MPI processes on this machine.
mpi_ranks() {
    if ! mpi_is_there; then
        sed -n 's/^gridpipe_mpi_missing:INTERNAL=//p' build/dev/CMakeCache.txt
        return 77
    fi
    bash tests/ranks/run.sh build/dev
}

# And over a network of 1 Gbit/s.
mpi_network() {
    mpi_is_there || { echo "there is no MPI" && return 77; }
    bash tests/ranks/network.sh build/dev
}

# --- sanitizers -----------------------------------------------------------------------------------

# Some containers forbid what the leak sanitizer and the thread sanitizer need.
sanitizer_works() {
    echo 'int main(void) { return 0; }' >"$logs/probe.c"
    gcc "-fsanitize=$1" "$logs/probe.c" -o "$logs/probe" && ${fixed_addresses-} "$logs/probe"
}

# Nothing is suppressed.
sanitized() {
    local output="$logs/sanitized-${1##*/}.out"
    local leaks=1
    $leaks_are_seen || leaks=0
    ASAN_OPTIONS=detect_leaks=$leaks UBSAN_OPTIONS=print_stacktrace=1 \
        timeout 1200 "$@" >"$output" 2>&1
    local status=$?
    cat "$output"
    grep -E 'AddressSanitizer|LeakSanitizer|runtime error' "$output" && return 1
    return $status
}

leak_check() {
    $leaks_are_seen && return 0
    echo "the leak sanitizer cannot run here (it needs ptrace)"
    return 77
}

thread_sanitized() {
    if ! $threads_are_seen; then
        echo "the thread sanitizer cannot run here"
        return 77
    fi
    local output="$logs/threads-${1##*/}.out"
    TSAN_OPTIONS="history_size=4 suppressions=$PWD/tests/data/tsan.supp" \
        timeout 1200 ${fixed_addresses-} "$@" >"$output" 2>&1
    local status=$?
    cat "$output"
    grep -E 'ThreadSanitizer' "$output" && return 1
    return $status
}

thread_sanitized_ranks() {
    if [[ ! -e build/tsan/examples/ranks ]]; then
        echo "examples/ranks.c is built only where there is MPI"
        return 77
    fi
    thread_sanitized build/tsan/examples/ranks --threads 3 &&
        thread_sanitized build/tsan/examples/ranks --threads 3 --replicas 2
}

# Random tests have had all their draws before.
sanitized_program() {
    export GRIDPIPE_RANDOM_MODELS=120 GRIDPIPE_RANDOM_CALLS=80
    step "sanitized ${1##*/}" sanitized "$1" -j1
}

sanitizers() {
    local programs
    leaks_are_seen=false threads_are_seen=false
    sanitizer_works address >/dev/null 2>&1 && leaks_are_seen=true
    if setarch "$(uname -m)" -R true 2>/dev/null; then
        fixed_addresses="setarch $(uname -m) -R" # the thread sanitizer wants a predictable layout
    fi
    sanitizer_works thread >/dev/null 2>&1 && threads_are_seen=true

    if step "build asan" build asan; then
        step "leak sanitizer" leak_check
        mapfile -t programs < <(test_programs build/asan)
        together sanitized_program "${programs[@]}"
        step "sanitized example" sanitized build/asan/examples/fashion_mnist "${short_run[@]}"
        step "sanitized readme" sanitized build/asan/examples/readme
    fi
    if step "build tsan" build tsan; then
        step "threads example" thread_sanitized build/tsan/examples/fashion_mnist --epochs 1 \
            --limit 400 --batch 128
        step "threads readme" thread_sanitized build/tsan/examples/readme
        step "threads ranks" thread_sanitized_ranks
    fi
}

# Memory that is read before it is written, which no sanitizer here sees. hwloc's plugins as above.
under_valgrind() {
    HWLOC_PLUGINS_PATH=$logs/none timeout 1200 valgrind --quiet --error-exitcode=9 \
        --leak-check=full --errors-for-leak-kinds=definite "$@"
}

# --- installation ---------------------------------------------------------------------------------

prefix=$source_dir/build/prefix

install_tree() {
    rm -rf "$prefix"
    cmake --install build/test-release --prefix "$prefix" || return 1
    ! find "$prefix" -path '*private*' | grep .
}

consumer_cmake() {
    rm -rf build/consumer
    cmake -S tests/consumer -B build/consumer -DCMAKE_PREFIX_PATH="$prefix" &&
        cmake --build build/consumer &&
        build/consumer/consumer_c && build/consumer/consumer_cxx && build/consumer/consumer_static
}

# The same for libgridpipe_mpi, as a process that is alone.
consumer_mpi() {
    local libdir
    if ! mpi_is_there; then
        echo "without MPI"
        return 77
    fi
    libdir=$(dirname "$(find "$prefix" -name libgridpipe.so)")
    export PKG_CONFIG_PATH=$libdir/pkgconfig OMPI_MCA_btl=self
    rm -rf build/consumer-mpi
    # shellcheck disable=SC2046
    cmake -S tests/consumer/mpi -B build/consumer-mpi -DCMAKE_PREFIX_PATH="$prefix" &&
        cmake --build build/consumer-mpi && build/consumer-mpi/consumer &&
        build/consumer-mpi/consumer_static &&
        gcc tests/consumer/mpi/consumer.c -o build/consumer-mpi/pc \
            $(pkg-config --cflags --libs gridpipe_mpi) &&
        LD_LIBRARY_PATH=$libdir build/consumer-mpi/pc
}

consumer_pkg_config() {
    local libdir library_path
    libdir=$(dirname "$(find "$prefix" -name libgridpipe.so)")
    export PKG_CONFIG_PATH=$libdir/pkgconfig
    library_path=$libdir
    mkdir -p build/consumer-pc
    # shellcheck disable=SC2046
    gcc tests/consumer/consumer.c -o build/consumer-pc/c $(pkg-config --cflags --libs gridpipe) &&
        g++ -std=c++11 tests/consumer/consumer.cc -o build/consumer-pc/cxx \
            $(pkg-config --cflags --libs gridpipe) &&
        gcc tests/consumer/consumer.c -o build/consumer-pc/static $(pkg-config --cflags gridpipe) \
            "$libdir/libgridpipe.a" $(pkg-config --static --libs gridpipe) &&
        LD_LIBRARY_PATH=$library_path build/consumer-pc/c &&
        LD_LIBRARY_PATH=$library_path build/consumer-pc/cxx && build/consumer-pc/static
}

# Only the public interface is visible, and the library neither prints, exits nor aborts.
# libgridpipe_mpi is another library, so what it needs of this one is visible, too.
symbols() {
    local library mpi
    library=$(find "$prefix" -name libgridpipe.so)
    mpi=$(find "$prefix" -name libgridpipe_mpi.so)
    nm -D --defined-only "$library" ${mpi:+"$mpi"} | awk 'NF == 3 { print $3 }' >"$logs/defined"
    nm -D --undefined-only "$library" | awk '{print $2}' | sed 's/@.*//' >"$logs/undefined"
    ! grep -v -E '^gpp_[a-z]|^gpp__(fail|comm_init|comm_release|comm_gather|handle_data)$' "$logs/defined" &&
        ! grep -x -E 'exit|_exit|_Exit|abort|quick_exit|__assert_fail|printf|puts|putchar|perror|stdout|stderr|__printf_chk' \
            "$logs/undefined"
}

# --- everything -----------------------------------------------------------------------------------

step "packages" install_packages || finish
if $quick; then
    export GRIDPIPE_RANDOM_MODELS=100 GRIDPIPE_RANDOM_CALLS=120
    step "build dev" build_without_warnings dev --target quick_tests || finish
else
    step "build dev" build_without_warnings dev || finish
    step "CUDA kernels" cuda_kernels
    step "oneDNN 3" onednn_3
fi
step "headers alone" headers_alone
step "documented code" documented_code
step "documented program" documented_program
step "house in order" bash tests/house.sh
criterion_tests
step "MPI over a network" mpi_network
step "readme example" build/dev/examples/readme
step "example" fashion_mnist build/dev
step "example, wrong options" wrong_options
if ! $quick; then
    step "example, other cuts" same_accuracy
    step "example, damaged data" damaged_data
    sanitizers
    step "valgrind readme" under_valgrind build/dev/examples/readme
    if step "build release" build_release && step "install" install_tree; then
        step "consumers, CMake" consumer_cmake
        step "consumers, pkg-config" consumer_pkg_config
        step "consumers, MPI" consumer_mpi
        step "symbols" symbols
    fi
fi
finish
