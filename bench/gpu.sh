#!/usr/bin/env bash
# Finds out everything that only a machine with a GPU can tell, in one command. Builds with CUDA in
# build/gpu. Runs the kernel tests, the reference vectors and the quickstart on the device. Measures
# its libraries, its bus and training steps of ResNet-50, beside PyTorch's where that is installed.
# Runs kernels and a pipe under the toolkit's sanitizers. At the end it prints a table with date and
# hardware, followed by the output of the programs that measure. Both are in build/gpu/results.md as
# well; with --write they go into docs/gpu.md. Messages of each part go to build/gpu/logs/.
#
# A part that fails or cannot run does not stop the others: the table says which part and why.
#
# Exit status: 0 nothing failed (parts that the table calls "not run" did not run); 1 something
# failed; 2 the command line is wrong; 3 there is no GPU or no toolkit.
set -uo pipefail
caller=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 3

usage() {
    cat <<END
usage: bash bench/gpu.sh [OPTION]...

  --gpu K            the GPU: its number as nvidia-smi counts, or its UUID (the first of
                     \$CUDA_VISIBLE_DEVICES, else 0)
  --second K         another one, for pipes over two (the second of \$CUDA_VISIBLE_DEVICES, if any)
  --starpu SOURCE    first build StarPU with CUDA, in build/gpu/starpu: from this archive or folder,
                     or "web": download release $starpu_release
  --vectors FOLDER   reference vectors (\$GRIDPIPE_VECTORS, else shared/vectors beside the sources)
  --data FOLDER      Fashion-MNIST (/usr/share/datasets/fashion-mnist; without it: random images)
  --python PROGRAM   with PyTorch, for comparison (python3)
  --batch N          images of a ResNet-50 step (64)
  --steps N          steps of a series of steps (50)
  --limit SECONDS    the most a program may take (1800)
  --quick            without the toolkit's sanitizers, which take long
  --write            put the table into docs/gpu.md

What is not in the usual places is found by CUDA_HOME, PKG_CONFIG_PATH (StarPU, hwloc) and
CMAKE_PREFIX_PATH (oneDNN, zlib, cuDNN).
END
}

starpu_release=1.4.12
gpu="" second="" starpu="" vectors=${GRIDPIPE_VECTORS-} data=/usr/share/datasets/fashion-mnist
python=python3 batch=64 steps=50 limit=1800 quick=false write=false
while (($#)); do
    case $1 in
    --gpu | --second | --starpu | --vectors | --data | --python | --batch | --steps | --limit)
        if (($# < 2)); then
            echo "gpu.sh: $1 needs a value" >&2
            exit 2
        fi
        printf -v "${1#--}" %s "$2"
        shift
        ;;
    --quick) quick=true ;;
    --write) write=true ;;
    --help | -h)
        usage
        exit 0
        ;;
    *)
        usage >&2
        exit 2
        ;;
    esac
    shift
done
for number in batch steps limit; do
    if [[ ! ${!number} =~ ^[1-9][0-9]*$ ]]; then
        echo "gpu.sh: --$number ${!number}: expected a number above 0" >&2
        exit 2
    fi
done
# Relative folders are relative to the caller's folder.
for name in vectors data starpu python; do
    path=$caller/${!name}
    if [[ -n ${!name} && ${!name} != /* && (${!name} == */* || -e $path) ]]; then
        printf -v "$name" %s "$path"
    fi
done
if [[ -n $starpu && $starpu != web && ! -e $starpu ]]; then
    echo "gpu.sh: --starpu $starpu: no such archive or folder" >&2
    exit 2
fi
for folder in "$vectors" shared/vectors ../shared/vectors; do
    if [[ -n $folder && -d $folder ]]; then
        vectors=$folder
        break
    fi
done

# Use only the GPUs that a batch system has assigned.
IFS=, read -r first_visible second_visible _ <<<"${CUDA_VISIBLE_DEVICES-}"
if [[ -z $gpu ]]; then
    gpu=${first_visible:-0}
    second=${second:-$second_visible}
fi

build=build/gpu
logs=$build/logs
results=$build/results.md
work=$build/work
rm -rf "$logs"
mkdir -p "$logs" "$work" || exit 3

# The caller's environment must not steer the runtime. Programs see only the one GPU, which then is
# GPU 0. Its number counts by the bus, not by speed. hwloc's plugins are off: one looks for
# displays, which takes seconds where names resolve slowly.
for variable in "${!STARPU_@}"; do
    unset "$variable"
done
export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=$gpu LC_ALL=C
export STARPU_SILENT=1 STARPU_HOSTNAME=gridpipe STARPU_HOME=$PWD/$build/starpu-home
export HWLOC_PLUGINS_PATH=$PWD/$build/none
mkdir -p "$STARPU_HOME"

# --- parts and the table --------------------------------------------------------------------------

rows=() details=() failed=0 left_out=0

# row WHAT RESULT
row() {
    rows+=("| $1 | ${2//|/\\|} |")
    printf '%-44s %s\n' "$1" "$2"
}

not_run() {
    left_out=$((left_out + 1))
    row "$1" "not run: $2"
}

# log_of NAME
log_of() {
    echo "$logs/${1//[^a-zA-Z0-9]/-}.log"
}

# step NAME COMMAND...: the last line of the command's output is the result. Status 77: the command
# cannot be run, and the last line says why.
step() {
    local name=$1 begin=$SECONDS log status last
    log=$(log_of "$name")
    shift
    [[ ! -t 1 ]] || printf '%-44s ...\r' "$name"
    ("$@") >"$log" 2>&1 </dev/null
    status=$?
    last=$(tail -n 1 "$log")
    case $status in
    0) row "$name" "$last ($((SECONDS - begin)) s)" ;;
    77) not_run "$name" "$last" ;;
    *)
        failed=$((failed + 1))
        if ((status == 124 || status == 137)); then
            last="ended after $limit s: $last"
        fi
        row "$name" "**failed** with status $status: ${last:0:200} ($log)"
        tail -n 15 "$log" | sed 's/^/    | /'
        ;;
    esac
    return $status
}

# table NAME COMMAND...: a step whose whole output is printed after the table of results.
table() {
    details+=("$1")
    step "$@"
}

# A timeout, so that a program that hangs does not stop the other parts.
limited() {
    timeout --kill-after=30 "$limit" "$@"
}

missing() {
    echo "gpu.sh: $*" >&2
    exit 3
}

print_details() {
    local name
    for name in ${details[@]+"${details[@]}"}; do
        printf '\n<details><summary>%s</summary>\n\n' "$name"
        printf '```\n'
        sed 's/[[:space:]]*$//' "$(log_of "$name")"
        printf '```\n\n</details>\n'
    done
}

write_results() {
    {
        echo "Measured on $(date -u +%Y-%m-%d), $(git describe --always --dirty 2>/dev/null ||
            echo "no git checkout")."
        echo
        echo "| what | result |"
        echo "| --- | --- |"
        printf '%s\n' "${rows[@]}"
        print_details
    } >"$results"
    if $write; then
        sed -i -e "/^<!-- results -->\$/,/^<!-- end of results -->\$/{//!d}" \
            -e "/^<!-- results -->\$/r $results" docs/gpu.md
    fi
}

finish() {
    write_results
    echo
    sed '/^<details>/,$d' "$results"
    echo "$failed failed, $left_out not run; details: $results and $logs/"
    exit $((failed > 0))
}

interrupted() {
    trap - INT TERM
    failed=$((failed + 1))
    row "the rest" "**failed**: interrupted"
    finish
}
trap interrupted INT TERM

# --- what there is --------------------------------------------------------------------------------

# For a part of a GPU (MIG) nvidia-smi wants a number that we do not know: take the first GPU.
query() {
    local id=(--id="$gpu")
    [[ $gpu != MIG-* ]] || id=()
    nvidia-smi ${id[@]+"${id[@]}"} --query-gpu="$1" --format=csv,noheader,nounits | head -n 1
}

command -v nvidia-smi >/dev/null || missing "no nvidia-smi: is NVIDIA's driver installed, and in a
container: was it started with its GPUs (docker run --gpus all)?"
[[ -n $(query name 2>/dev/null) ]] || missing "nvidia-smi shows no GPU $gpu:
$(nvidia-smi -L 2>&1 | head -n 16)"
if [[ -n ${CUDA_HOME-} ]]; then
    export PATH=$CUDA_HOME/bin:$PATH
else
    export PATH=$PATH:/usr/local/cuda/bin
fi
command -v nvcc >/dev/null || missing "no nvcc: install the CUDA toolkit, or set CUDA_HOME"
for tool in cmake pkg-config cc c++ timeout awk gzip; do
    command -v $tool >/dev/null || missing "no $tool: install it"
done

starpu_module() {
    local module
    for module in starpu-1.4 starpu-1.3; do
        if pkg-config --exists $module 2>/dev/null; then
            echo $module
            return 0
        fi
    done
    return 1
}

starpu_has_cuda() {
    local flags
    flags=$(pkg-config --cflags "$(starpu_module)" 2>/dev/null) || return 1
    # shellcheck disable=SC2086
    printf '#include <starpu_config.h>\n#ifndef STARPU_USE_CUDA\n#error\n#endif\n' |
        cc $flags -E - >/dev/null 2>&1
}

describe_starpu() {
    local module
    if ! module=$(starpu_module); then
        echo "none: pkg-config finds neither starpu-1.4 nor starpu-1.3"
    elif starpu_has_cuda; then
        echo "$(pkg-config --modversion "$module"), with CUDA"
    else
        echo "$(pkg-config --modversion "$module"), **without CUDA**"
    fi
}

describe_machine() {
    local cpu
    cpu=$(lscpu 2>/dev/null | sed -n 's/^Model name: *//p' | head -n 1)
    row "GPU" "$(query name), $(query memory.total) MiB, driver $(query driver_version)"
    row "CUDA toolkit" "$(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')"
    row "StarPU" "$(describe_starpu)"
    row "CPU" "${cpu:-$(uname -m)}, $(nproc) threads"
    {
        nvidia-smi -L
        nvidia-smi topo -m
        nvidia-smi -q --id="$gpu"
        cc --version
        cmake --version
        lscpu
    } >"$logs/machine.log" 2>&1
}

# has_header NAME: whether a header is where a compiler or CMake looks for it.
has_header() {
    local prefix
    echo "#include <$1>" | cc -E - >/dev/null 2>&1 && return 0
    while IFS= read -r -d : prefix; do
        [[ -n $prefix && -e $prefix/include/$1 ]] && return 0
    done <<<"${CMAKE_PREFIX_PATH-}:${OneDNN_ROOT-}:${ZLIB_ROOT-}:"
    return 1
}

# Reports all missing packages at once, so that a first run does not end once for each of them.
tell_missing() {
    local lacking=()
    starpu_module >/dev/null || lacking+=("StarPU (--starpu builds it)")
    pkg-config --exists hwloc || lacking+=("hwloc (libhwloc-dev)")
    has_header dnnl.h || has_header oneapi/dnnl/dnnl.h || lacking+=("oneDNN (libdnnl-dev)")
    has_header zlib.h || lacking+=("zlib (zlib1g-dev)")
    ((${#lacking[@]} == 0)) || printf 'not found: %s\n' "${lacking[@]}"
}

# --- StarPU ---------------------------------------------------------------------------------------

fetch_starpu() {
    local archive=starpu-$starpu_release.tar.gz url
    url=https://files.inria.fr/starpu/starpu-$starpu_release/$archive
    starpu=$work/$archive
    [[ ! -s $starpu ]] || return 0
    if command -v curl; then
        curl -fL --retry 3 -o "$starpu.part" "$url" || return 1
    else
        wget -O "$starpu.part" "$url" || return 1
    fi
    mv "$starpu.part" "$starpu"
}

# Releases up to 1.4.12 ask for a field that CUDA 13 no longer has; StarPU's own repair is commit
# 1e1bccaa6 of the branch starpu-1.4.
repair_starpu() {
    local asked="props\[devid\]\.computeMode == cudaComputeModeExclusive" mode
    mode="({ int mode = 0; cudaDeviceGetAttribute(\&mode, cudaDevAttrComputeMode, devid);"
    mode+=" mode == cudaComputeModeExclusive; })"
    grep -q cudaDevAttrComputeMode "$1"/src/drivers/cuda/driver_cuda.c ||
        sed -i "s/$asked/$mode/" "$1"/src/drivers/cuda/driver_cuda*.c
}

build_starpu() {
    local source=$work/starpu-source prefix=$PWD/$build/starpu cuda
    cuda=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
    [[ $starpu != web ]] || fetch_starpu || return 1
    rm -rf "$source" "$work/starpu-build"
    mkdir -p "$source" "$work/starpu-build"
    if [[ -d $starpu ]]; then
        cp -R "$starpu"/. "$source" || return 1
    else
        tar -xf "$starpu" -C "$source" --strip-components=1 || return 1
    fi
    [[ -x $source/configure ]] || (cd "$source" && ./autogen.sh) || return 1
    repair_starpu "$source" || return 1
    cd "$work/starpu-build" || return 1
    ../starpu-source/configure --prefix="$prefix" --enable-cuda --with-cuda-dir="$cuda" \
        --disable-opencl --disable-mpi --disable-starpufft --disable-build-doc \
        --disable-build-examples --disable-build-tests --enable-maxcudadev=8 || return 1
    make -j"$(nproc)" && make install || return 1
    grep -q 'define STARPU_USE_CUDA' "$prefix"/include/starpu/*/starpu_config.h || {
        echo "configure has found no CUDA: see config.log in $work/starpu-build"
        return 1
    }
    echo "built"
}

use_starpu() {
    local library=$PWD/$build/starpu/lib
    [[ -d $library/pkgconfig ]] || return 0
    export PKG_CONFIG_PATH=$library/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
    export LD_LIBRARY_PATH=$library${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

# --- building -------------------------------------------------------------------------------------

# Whether the kernel tests can be built: they need Criterion and jansson.
has_criterion() {
    pkg-config --exists criterion jansson
}

# --fresh: what CMake found in an earlier run may have changed.
configure() {
    local tests=OFF architecture
    architecture=$(query compute_cap | tr -cd 0-9)
    ! has_criterion || tests=ON
    tell_missing
    cmake --fresh --preset release -B $build -DGRIDPIPE_CUDA=ON -DGRIDPIPE_TESTS=$tests \
        -DGRIDPIPE_TOOLS=ON -DGRIDPIPE_EXAMPLES=ON -DGRIDPIPE_BENCH=ON -DGRIDPIPE_WERROR=OFF \
        -DCMAKE_CUDA_ARCHITECTURES="${architecture:-native}" || {
        tell_missing
        return 1
    }
    echo "done"
}

# make_targets TARGET...: builds as many as possible. Warnings do not end a run.
make_targets() {
    local log=$work/build.out status=0 target
    : >"$log"
    for target; do
        cmake --build $build --parallel "$(nproc)" --target "$target" 2>&1 | tee -a "$log"
        ((PIPESTATUS[0] == 0)) || {
            echo "$target cannot be built"
            status=1
        }
    done
    ((status == 0)) && echo "$# built, $(grep -c 'warning:' "$log") warnings"
}

make_tests() {
    local test targets=()
    for test in tests/cuda/test_*.c; do
        test=${test##*/}
        targets+=("${test%.c}_device")
    done
    make_targets "${targets[@]}"
}

# The first start of StarPU on a machine measures its buses.
first_pipe() {
    $build/tools/gridpipe info
    idx "$work/x.idx" 2 4
    limited $build/tools/gridpipe run --model "linear out=2" --input "$work/x.idx" --shape 4 \
        --devices cuda:0 || return
    echo "runs"
}

# --- kernels --------------------------------------------------------------------------------------

kernel_tests() {
    find $build/tests -maxdepth 1 -name 'test_*_device' -perm -u+x | sort
}

# A test that skips itself has tested nothing. Only tests about the emulation may skip themselves
# here, and tests that need pipes on GPUs where StarPU has no CUDA.
may_skip() {
    local allowed="about the emulated"
    $pipes || allowed+="|no GPU for pipes"
    grep -vE "$allowed"
}

on_device() {
    local program tap=$work/tap count=0 skipped=0 bad=0
    for program in $(kernel_tests); do
        echo "--- $program"
        rm -f "$tap"
        limited "$program" -j1 --tap="$tap" || bad=$((bad + 1))
        [[ -s $tap ]] || continue
        if grep '^not ok' "$tap" || grep -i '# SKIP' "$tap" | may_skip; then
            bad=$((bad + 1))
        fi
        skipped=$((skipped + $(grep -ic '# SKIP' "$tap")))
        count=$((count + $(grep -c '^ok' "$tap")))
    done
    count=$((count - skipped))
    echo "$count passed, $skipped skipped, $bad programs or tests failed"
    ((count > 0 && bad == 0))
}

# sanitize TOOL PROGRAM...: fails when the tool finds something, or has seen no CUDA at all.
sanitize() {
    local tool=$1 out=$work/sanitizer
    shift
    echo "--- $tool $*"
    limited compute-sanitizer --tool "$tool" --target-processes all --error-exitcode 9 \
        --print-limit 20 "$@" >"$out" 2>&1
    local status=$?
    cat "$out"
    if ((status == 0)) && ! grep -q 'ERROR SUMMARY: 0 errors\|RACECHECK SUMMARY: 0 hazards' "$out"; then
        echo "$tool has not summed anything up: did it run?"
        status=1
    fi
    return $status
}

has_sanitizer() {
    command -v compute-sanitizer >/dev/null || {
        echo "no compute-sanitizer: it is part of the CUDA toolkit"
        return 77
    }
}

sanitized_tests() {
    local program count=0 bad=()
    has_sanitizer || return
    for program in $(kernel_tests); do
        sanitize "$1" "$program" -j1 || bad+=("${program##*/}")
        count=$((count + 1))
    done
    echo "$((count - ${#bad[@]})) of $count programs clean${bad[*]:+; not: ${bad[*]}}"
    ((count > 0 && ${#bad[@]} == 0))
}

# A step of a model with most kinds of kernels, recomputed, over two partitions.
sanitized_pipe() {
    has_sanitizer || return
    idx "$work/small.idx" 8 32 16
    classes "$work/small-classes.idx" 8
    sanitize "$1" $build/tools/gridpipe run --model "conv2d out=8 kernel=3 padding=1; batchnorm; relu;
        maxpool2d kernel=2; conv2d out=8 kernel=1; groupnorm groups=2; gelu; dropout p=0.5; flatten;
        layernorm shape=512; linear out=10" --input "$work/small.idx" --shape 2,16,16 --std 255 \
        --target "$work/small-classes.idx" --loss cross_entropy --optimizer "adam lr=0.01" \
        --chunks 2 --partitions 2 --checkpoint always --devices "$one_gpu" --steps 2 || return
    echo "clean"
}

# --- libraries and the bus ------------------------------------------------------------------------

measure() {
    local program=$build/bench/bench_$1
    shift
    [[ -x $program ]] || {
        echo "${program##*/} was not built"
        return 77
    }
    limited "$program" "$@"
}

# --- pipes ----------------------------------------------------------------------------------------

# Serves any number of partitions that occurs: entries that are not needed are ignored.
one_gpu="cuda:0;cuda:0;cuda:0;cuda:0;cuda:0;cuda:0;cuda:0;cuda:0;cuda:0;cuda:0;cuda:0;cuda:0"

# The tolerance is 1e-4 of the largest value: float32 sums run in another order than the
# reference's, and products use other instructions. Several partitions on the one GPU have to agree
# as well.
check_vectors() {
    [[ -d $vectors ]] || {
        echo "no reference vectors: --vectors FOLDER"
        return 77
    }
    limited $build/tools/gridpipe check --tolerance 1e-4 --devices "$one_gpu" "$@" \
        "$vectors"/*.safetensors
}

quickstart_model="conv2d out=32 kernel=3 padding=1; relu; maxpool2d kernel=2;
conv2d out=64 kernel=3 padding=1; relu; maxpool2d kernel=2;
flatten; linear out=128; relu; dropout p=0.25; linear out=10"

# train NAME PARTITIONS DEVICES: trains an epoch of Fashion-MNIST and saves the parameters to a
# file.
train() {
    limited $build/tools/gridpipe train --model "$quickstart_model" \
        --input "$data/train-images-idx3-ubyte.gz" --target "$data/train-labels-idx1-ubyte.gz" \
        --test-input "$data/t10k-images-idx3-ubyte.gz" \
        --test-target "$data/t10k-labels-idx1-ubyte.gz" \
        --shape 1,28,28 --std 255 --batch 256 --chunks 4 --epochs 1 --seed 1 --json \
        --partitions "$2" --devices "$3" --save-params "$work/$1.safetensors" |
        tee "$work/epoch"
    local status=${PIPESTATUS[0]}
    ((status == 0)) || return "$status"
    awk -F '[:,]' '{ for (k = 1; k < NF; k++) value[$k] = $(k + 1) }
        END { printf "accuracy%s,%.2f s an epoch", value[" \"test_accuracy\""], \
                     value[" \"seconds\""] }' "$work/epoch"
    echo "$made_up"
}

same_bits() {
    local name
    for name in "${@:2}"; do
        [[ -s $work/$1.safetensors && -s $work/$name.safetensors ]] || {
            echo "one of the trainings has failed"
            return 77
        }
        cmp "$work/$1.safetensors" "$work/$name.safetensors" || return 1
    done
    echo "parameters after an epoch are identical"
}

quickstart() {
    local partitions
    [[ -x $build/examples/fashion_mnist ]] || {
        echo "the example was not built"
        return 77
    }
    for partitions in 1 2 4; do
        limited $build/examples/fashion_mnist --epochs 1 --data "$data" --partitions $partitions \
            >"$work/quickstart$partitions" || return
        cat "$work/quickstart$partitions"
    done
    if (($(cat "$work"/quickstart[124] | grep -o 'accuracy=[0-9.]*' | sort -u | wc -l) != 1)); then
        echo "accuracies differ"
        return 1
    fi
    for partitions in 1 2 4; do
        sed -n 's/.*\(accuracy=[^ ]*\).*\(step_ms=[^ ]*\).*/\1 \2/p' "$work/quickstart$partitions"
    done | paste -sd ' '
}

# Only this part sees both GPUs.
two_gpus() {
    export CUDA_VISIBLE_DEVICES=$gpu,$second
    rm -rf "$STARPU_HOME-two"
    export STARPU_HOME=$STARPU_HOME-two
    mkdir -p "$STARPU_HOME"
    train two 4 "cuda:0;cuda:1;cuda:0;cuda:1" || return
    same_bits p1 two
}

# --- made-up data ---------------------------------------------------------------------------------

# The same number in four bytes, the highest first.
be32() {
    local shift
    for shift in 24 16 8 0; do
        printf '%b' "\\0$(printf %03o $(($1 >> shift & 255)))"
    done
}

# idx_head DIMENSION...: in MNIST's format.
idx_head() {
    local dimension
    printf '%b' "\\0000\\0000\\0010\\0$(printf %03o $#)"
    for dimension; do
        be32 "$dimension"
    done
}

# idx FILE DIMENSION...: random bytes.
idx() {
    local file=$1 dimension count=1
    shift
    for dimension; do
        count=$((count * dimension))
    done
    {
        idx_head "$@"
        head -c $count /dev/urandom
    } >"$file"
}

# classes FILE COUNT: 0 ... 9 in turn.
classes() {
    {
        idx_head "$2"
        yes $'\\000\\001\\002\\003\\004\\005\\006\\007\\010\\011' | head -n $((($2 + 9) / 10)) |
            while read -r ten; do printf '%b' "${ten//\\/\\0}"; done | head -c "$2"
    } >"$1"
}

# Without Fashion-MNIST: as many images of noise. Nothing can be learnt from them, but bits and
# times can still be compared.
make_data() {
    local set rows
    made_up=""
    [[ ! -s $data/train-images-idx3-ubyte.gz ]] || return 0
    data=$work/data
    made_up=", random images"
    mkdir -p "$data"
    for set in train:60000 t10k:10000; do
        rows=${set#*:} set=${set%:*}
        idx "$data/$set-images-idx3-ubyte" "$rows" 28 28
        classes "$data/$set-labels-idx1-ubyte" "$rows"
        gzip -1 -f "$data/$set"-*-ubyte
    done
}

# --- ResNet-50 ------------------------------------------------------------------------------------

# Prints why there is no PyTorch to compare with; "" if there is one.
find_torch() {
    torch=$("$python" -c 'import torch
if not torch.cuda.is_available(): raise SystemExit("PyTorch sees no GPU")' 2>&1 | tail -n 1)
}

# numbers FILE...: the median of the first "N ms a step" in each file.
median() {
    sed -n 's/^\([0-9.]*\) ms a step.*/\1/p' "$@" | sort -n |
        awk '{ value[NR] = $1 } END { if (NR) print value[int((NR + 1) / 2)] }'
}

# beside MATH: runs our steps and PyTorch's in turn, three times.
beside() {
    local round ours theirs
    rm -f "$work"/ours? "$work"/theirs?
    for round in 1 2 3; do
        measure gpu_steps --part step --math "$1" --batch "$batch" --steps "$steps" --series 1 \
            >"$work/ours$round" || {
            local status=$?
            cat "$work/ours$round"
            return "$status"
        }
        cat "$work/ours$round"
        [[ -z $torch ]] || continue
        limited "$python" bench/gpu_pytorch.py "$batch" "$steps" 1 "$1" >"$work/theirs$round" 2>&1
        cat "$work/theirs$round"
    done
    ours=$(median "$work"/ours?)
    [[ -n $ours ]] || return 1
    if [[ -n $torch ]]; then
        echo "$ours ms a step; PyTorch not measured: $torch"
        return 0
    fi
    theirs=$(median "$work"/theirs?)
    [[ -n $theirs ]] || {
        echo "$ours ms a step; PyTorch failed: $(tail -n 1 "$work/theirs1")"
        return 1
    }
    echo "$ours ms a step; in PyTorch $(tail -n 1 "$work/theirs3" | sed 's/^[0-9.]* ms a step/'"$theirs"'/')"
}

# --- everything -----------------------------------------------------------------------------------

if [[ -n $starpu ]]; then
    step "StarPU with CUDA, $starpu" build_starpu
fi
use_starpu
describe_machine

built=false pipes=false tests=false why_pipes="" why_tests=""
if step "configure, GRIDPIPE_CUDA=ON" configure; then
    step "build, library and command" make_targets gridpipe_command && built=true
    if $built; then
        if starpu_has_cuda; then
            step "build, programs" make_targets bench_gpu_products bench_gpu_convolutions \
                bench_gpu_steps fashion_mnist
            step "a pipe on cuda:0" first_pipe && pipes=true
            $pipes || why_pipes="no pipe on cuda:0 could be made"
        else
            step "build, programs" make_targets bench_gpu_products bench_gpu_convolutions
            why_pipes="StarPU has no CUDA; --starpu builds one that has"
        fi
        if ! has_criterion; then
            why_tests="Criterion or jansson is missing (libcriterion-dev, libjansson-dev)"
        elif step "build, kernel tests" make_tests || [[ -n $(kernel_tests) ]]; then
            tests=true
        else
            why_tests="they were not built"
        fi
    fi
fi
if ! $built; then
    why_pipes="the library was not built" why_tests=$why_pipes
fi

# kernel_part, pipe_part, test_part: step or table, unless what they need is missing.
kernel_part() { if $built; then "$@"; else not_run "$2" "the library was not built"; fi; }
pipe_part() { if $pipes; then "$@"; else not_run "$2" "$why_pipes"; fi; }
test_part() { if $tests; then "$@"; else not_run "$2" "$why_tests"; fi; }

test_part step "kernel tests on the device" on_device
kernel_part table "copies, host and GPU" measure gpu_products --part bus
kernel_part table "products, bits and pedantic mode" measure gpu_products --part products \
    --batch "$batch"
for math in f32 tf32 bf16; do
    kernel_part table "convolutions of ResNet-50, $math" measure gpu_convolutions --math $math \
        --batch "$batch"
done

pipe_part step "reference vectors on cuda:0" check_vectors
pipe_part step "reference vectors, all recomputed" check_vectors --checkpoint always
if $pipes; then
    make_data
fi
for partitions in 1 2 4; do
    rm -f "$work/p$partitions.safetensors"
    pipe_part step "Fashion-MNIST, $partitions on one GPU" train p$partitions $partitions "$one_gpu"
done
pipe_part step "1, 2 and 4 partitions, bits" same_bits p1 p2 p4
pipe_part step "quickstart, 1, 2 and 4 partitions" quickstart
if [[ -n $second ]]; then
    pipe_part step "4 partitions on two GPUs, bits" two_gpus
else
    not_run "4 partitions on two GPUs, bits" "one GPU is used; --second adds another"
fi

find_torch
for math in f32 tf32 bf16; do
    pipe_part step "ResNet-50, $math, batch $batch" beside $math
done
pipe_part table "ResNet-50, ways of computing" measure gpu_steps --part math --batch "$batch" \
    --steps "$steps"
pipe_part table "ResNet-50, inputs and steps in flight" measure gpu_steps --part inputs \
    --batch "$batch" --steps "$steps"
pipe_part table "ResNet-50, the first steps" measure gpu_steps --part first --batch "$batch"
pipe_part table "tasks of empty cells" measure gpu_steps --part tasks

for tool in memcheck racecheck synccheck; do
    if $quick; then
        not_run "compute-sanitizer $tool" "--quick"
        continue
    fi
    pipe_part step "compute-sanitizer $tool, a pipe" sanitized_pipe $tool
    test_part step "compute-sanitizer $tool, kernels" sanitized_tests $tool
done
finish
