#!/usr/bin/env bash
# Everything that only a machine with a GPU can tell, in one command: builds with CUDA in build/gpu,
# runs the kernel tests on the device, the reference vectors and the quickstart on it, the toolkit's
# sanitizers, and measures a ResNet-50 step, beside PyTorch's where that is installed. In the end it
# prints a table with date and hardware, which is in build/gpu/results.md as well and with --write
# replaces the one in docs/gpu.md. What a step says goes to build/gpu/logs/.
#
# Exit status: 0 everything passed; 1 something failed; 2 the command line is wrong; 3 there is no
# GPU, or something that is needed is missing.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 3

usage() {
    cat <<END
usage: bash bench/gpu.sh [OPTION]...

  --gpu K            number of the GPU, as nvidia-smi counts (0)
  --vectors FOLDER   reference vectors (\$GRIDPIPE_VECTORS, else shared/vectors beside the sources)
  --data FOLDER      Fashion-MNIST (/usr/share/datasets/fashion-mnist)
  --python PROGRAM   with PyTorch, for comparison (python3)
  --batch N          images of a ResNet-50 step (64)
  --steps N          steps to measure (50)
  --quick            without the toolkit's sanitizers, which take long
  --write            put the table into docs/gpu.md
END
}

gpu=0 vectors=${GRIDPIPE_VECTORS-} data=/usr/share/datasets/fashion-mnist python=python3
batch=64 steps=50 quick=false write=false
while (($#)); do
    case $1 in
    --gpu | --vectors | --data | --python | --batch | --steps)
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
for number in gpu batch steps; do
    if [[ ! ${!number} =~ ^[0-9]+$ ]]; then
        echo "gpu.sh: --$number ${!number}: expected a number" >&2
        exit 2
    fi
done
for folder in "$vectors" shared/vectors ../shared/vectors; do
    if [[ -n $folder && -d $folder ]]; then
        vectors=$folder
        break
    fi
done

build=build/gpu
logs=$build/logs
results=$build/results.md
work=$build/work
mkdir -p "$logs" "$work"

# Nothing of the caller's environment steers the runtime, and nothing but the one GPU is seen, which
# then is GPU 0. Its number is the bus's, not that of the fastest first.
for variable in "${!STARPU_@}"; do
    unset "$variable"
done
export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=$gpu
export STARPU_SILENT=1 STARPU_HOSTNAME=gridpipe STARPU_HOME=$PWD/$build/starpu-home LC_ALL=C
mkdir -p "$STARPU_HOME"

# --- steps and the table --------------------------------------------------------------------------

rows=() failed=0

# row WHAT RESULT
row() {
    rows+=("| $1 | $2 |")
    printf '%-44s %s\n' "$1" "$2"
}

# step NAME COMMAND...: its last line of output is the result.
step() {
    local name=$1 begin=$SECONDS log status
    log=$logs/${name//[^a-zA-Z0-9]/-}.log
    shift
    ("$@") >"$log" 2>&1
    status=$?
    if ((status)); then
        failed=$((failed + 1))
        row "$name" "**failed** ($log)"
        tail -n 15 "$log" | sed 's/^/    | /'
    else
        row "$name" "$(tail -n 1 "$log") ($((SECONDS - begin)) s)"
    fi
    return $status
}

missing() {
    echo "gpu.sh: $*" >&2
    exit 3
}

write_results() {
    {
        echo "Measured on $(date -u +%Y-%m-%d), $(git describe --always --dirty 2>/dev/null)."
        echo
        echo "| what | result |"
        echo "| --- | --- |"
        printf '%s\n' "${rows[@]}"
    } >"$results"
    if $write; then
        sed -i -e "/^<!-- results -->\$/,/^<!-- end of results -->\$/{//!d}" \
            -e "/^<!-- results -->\$/r $results" docs/gpu.md
    fi
}

# --- what there is --------------------------------------------------------------------------------

query() {
    nvidia-smi --id="$gpu" --query-gpu="$1" --format=csv,noheader,nounits
}

command -v nvidia-smi >/dev/null || missing "no nvidia-smi: is NVIDIA's driver installed?"
query name >/dev/null 2>&1 || missing "nvidia-smi shows no GPU $gpu"
export PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
command -v nvcc >/dev/null || missing "no nvcc: install the CUDA toolkit, or set CUDA_HOME"

describe_machine() {
    row "GPU" "$(query name), $(query memory.total) MiB, driver $(query driver_version)"
    row "CUDA toolkit" "$(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')"
    row "StarPU" "$(pkg-config --modversion starpu-1.4 2>/dev/null ||
        pkg-config --modversion starpu-1.3)"
    row "CPU" "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) threads"
}

# --- building -------------------------------------------------------------------------------------

build_all() {
    cmake --preset release -B $build -DGRIDPIPE_CUDA=ON -DGRIDPIPE_TESTS=ON -DGRIDPIPE_TOOLS=ON \
        -DGRIDPIPE_EXAMPLES=ON -DGRIDPIPE_BENCH=OFF -DGRIDPIPE_WERROR=ON \
        -DCMAKE_CUDA_ARCHITECTURES="$(query compute_cap | tr -d .)" || return 1
    cmake --build $build --parallel "$(nproc)" || return 1
    if ! $build/tools/gridpipe run --model "linear out=2" --input "$work/x.idx" --shape 4 \
        --devices cuda:0; then
        echo "a pipe on cuda:0 cannot be made: was StarPU configured with --enable-cuda?"
        return 1
    fi
    echo "without warnings"
}

# --- kernels --------------------------------------------------------------------------------------

kernel_tests() {
    find $build/tests -maxdepth 1 -name 'test_*_device' -perm -u+x | sort
}

# A test that skips itself has tested nothing: here that is a failure.
on_device() {
    local program count=0 bad=0
    for program in $(kernel_tests); do
        "$program" -j1 --tap="$work/tap" || bad=$((bad + 1))
        if grep -n '^not ok\|# SKIP' "$work/tap"; then
            bad=$((bad + 1))
        fi
        count=$((count + $(grep -c '^ok' "$work/tap")))
    done
    ((count > 0 && bad == 0)) && echo "$count passed"
}

sanitized() {
    local program count=0
    command -v compute-sanitizer || {
        echo "no compute-sanitizer: it is part of the CUDA toolkit"
        return 1
    }
    for program in $(kernel_tests); do
        echo "--- $1 $program"
        compute-sanitizer --tool "$1" --target-processes all --error-exitcode 9 \
            "$program" -j1 || return 1
        count=$((count + 1))
    done
    ((count > 0)) && echo "$count programs clean"
}

# --- pipes ----------------------------------------------------------------------------------------

# For any number of partitions that occurs: entries that are not needed are passed over.
one_gpu="cuda:0;cuda:0;cuda:0;cuda:0;cuda:0;cuda:0;cuda:0;cuda:0;cuda:0;cuda:0;cuda:0;cuda:0"

# Float32 sums in another order than the reference's, and products by other instructions: 1e-4 of
# the largest value. Several partitions on the one GPU have to agree as well.
check_vectors() {
    [[ -d $vectors ]] || {
        echo "no reference vectors: --vectors FOLDER"
        return 1
    }
    $build/tools/gridpipe check --tolerance 1e-4 --devices "$one_gpu" "$@" "$vectors"/*.safetensors
}

quickstart_model="conv2d out=32 kernel=3 padding=1; relu; maxpool2d kernel=2;
conv2d out=64 kernel=3 padding=1; relu; maxpool2d kernel=2;
flatten; linear out=128; relu; dropout p=0.25; linear out=10"

# train PARTITIONS: an epoch of Fashion-MNIST; what it has learnt goes to a file.
train() {
    $build/tools/gridpipe train --model "$quickstart_model" \
        --input "$data/train-images-idx3-ubyte.gz" --target "$data/train-labels-idx1-ubyte.gz" \
        --test-input "$data/t10k-images-idx3-ubyte.gz" \
        --test-target "$data/t10k-labels-idx1-ubyte.gz" \
        --shape 1,28,28 --std 255 --batch 256 --chunks 4 --epochs 1 --seed 1 --json \
        --partitions "$1" --devices "$one_gpu" --save-params "$work/p$1.safetensors" |
        tee "$work/epoch"
    ((PIPESTATUS[0] == 0)) || return 1
    awk -F '[:,]' '{ for (k = 1; k < NF; k++) value[$k] = $(k + 1) }
        END { printf "accuracy%s,%.2f s an epoch\n", value[" \"test_accuracy\""], \
                     value[" \"seconds\""] }' "$work/epoch"
}

same_bits() {
    cmp "$work/p1.safetensors" "$work/p2.safetensors" &&
        cmp "$work/p1.safetensors" "$work/p4.safetensors" &&
        echo "parameters after an epoch are identical"
}

quickstart() {
    local partitions
    for partitions in 1 2 4; do
        $build/examples/fashion_mnist --epochs 1 --data "$data" --partitions $partitions \
            >"$work/quickstart$partitions" || return 1
        tail -n 1 "$work/quickstart$partitions"
    done
    [[ $(cat "$work"/quickstart[124] | grep -o 'accuracy=[0-9.]*' | sort -u | wc -l) == 1 ]]
}

# --- ResNet-50 ------------------------------------------------------------------------------------

# The same number in four bytes, the highest first.
be32() {
    local shift
    for shift in 24 16 8 0; do
        printf '%b' "\\0$(printf %03o $(($1 >> shift & 255)))"
    done
}

# idx FILE DIMENSION...: random bytes in MNIST's format.
idx() {
    local file=$1 dimension count=1
    shift
    {
        printf '%b' "\\0000\\0000\\0010\\0$(printf %03o $#)"
        for dimension; do
            be32 "$dimension"
            count=$((count * dimension))
        done
        head -c $count /dev/urandom
    } >"$file"
}

# block NUMBER WIDTH STRIDE PROJECT: three convolutions around which a skip goes.
block() {
    local out=$((4 * $2)) project=""
    (($4)) && project=" { conv2d out=$out kernel=1 stride=$3 bias=0; batchnorm }"
    cat <<END
stash name=s$1
conv2d out=$2 kernel=1 bias=0; batchnorm; relu
conv2d out=$2 kernel=3 stride=$3 padding=1 bias=0; batchnorm; relu
conv2d out=$out kernel=1 bias=0; batchnorm
pop name=s$1 mode=add$project
relu
END
}

resnet50() {
    local blocks=(3 4 6 3) stage k number=0
    echo "conv2d out=64 kernel=7 stride=2 padding=3 bias=0; batchnorm; relu"
    echo "maxpool2d kernel=3 stride=2 padding=1"
    for ((stage = 0; stage < 4; stage++)); do
        for ((k = 0; k < blocks[stage]; k++)); do
            block $((number++)) $((64 << stage)) $((k == 0 && stage > 0 ? 2 : 1)) $((k == 0))
        done
    done
    echo "adaptive_avgpool2d out=1; flatten; linear out=1000"
}

# The last of many steps, from the start of its first task to the end of its last one, three times:
# the median.
gridpipe_step() {
    local run
    for run in 1 2 3; do
        $build/tools/gridpipe run --model-file "$work/resnet50.txt" --input "$work/images.idx" \
            --shape 3,224,224 --mean 127 --std 64 --target "$work/classes.idx" \
            --loss cross_entropy --optimizer "sgd lr=0.01 momentum=0.9" --checkpoint never \
            --devices cuda:0 --steps "$steps" --json | tee "$work/run$run"
        ((PIPESTATUS[0] == 0)) || return 1
    done
    sed -n 's/.*"step_ms": \([0-9.]*\).*/\1/p' "$work"/run[123] | sort -n |
        awk 'NR == 2 { printf "%.2f ms a step\n", $1 }'
}

# The same network, precision and layout; the mini-batch is on the GPU already.
pytorch_step() {
    "$python" - "$batch" "$steps" <<'END'
import sys, time
import torch
from torch import nn

batch, steps = int(sys.argv[1]), int(sys.argv[2])
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
torch.backends.cudnn.benchmark = True


def conv(i, o, k, s=1):
    return nn.Sequential(nn.Conv2d(i, o, k, s, k // 2, bias=False), nn.BatchNorm2d(o))


class Block(nn.Module):
    def __init__(self, i, width, s, project):
        super().__init__()
        o = 4 * width
        self.way = nn.Sequential(conv(i, width, 1), nn.ReLU(), conv(width, width, 3, s), nn.ReLU(),
                                 conv(width, o, 1))
        self.skip = conv(i, o, 1, s) if project else nn.Identity()

    def forward(self, x):
        return torch.relu(self.way(x) + self.skip(x))


layers, i = [conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
for stage, blocks in enumerate((3, 4, 6, 3)):
    for k in range(blocks):
        layers.append(Block(i, 64 << stage, 2 if k == 0 and stage > 0 else 1, k == 0))
        i = 4 * (64 << stage)
layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)]
net = nn.Sequential(*layers).cuda().to(memory_format=torch.channels_last)
sgd = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
x = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
y = torch.randint(1000, (batch,), device="cuda")


def step():
    sgd.zero_grad(set_to_none=True)
    nn.functional.cross_entropy(net(x), y).backward()
    sgd.step()


for _ in range(5):
    step()
torch.cuda.synchronize()
begin = time.perf_counter()
for _ in range(steps):
    step()
torch.cuda.synchronize()
print("%.2f ms a step, PyTorch %s" %
      ((time.perf_counter() - begin) / steps * 1000, torch.__version__))
END
}

# --- everything -----------------------------------------------------------------------------------

describe_machine
idx "$work/x.idx" 2 4
if step "build, GRIDPIPE_CUDA=ON" build_all; then
    step "kernel tests on the device" on_device
    step "reference vectors on cuda:0" check_vectors
    step "reference vectors, all recomputed" check_vectors --checkpoint always
    for partitions in 1 2 4; do
        step "Fashion-MNIST, $partitions on one GPU" train $partitions
    done
    step "1, 2 and 4 partitions, bits" same_bits
    step "quickstart, 1, 2 and 4 partitions" quickstart
    resnet50 >"$work/resnet50.txt"
    idx "$work/images.idx" "$batch" 672 224
    idx "$work/classes.idx" "$batch"
    step "ResNet-50, float32, batch $batch" gridpipe_step
    if "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
        step "the same in PyTorch" pytorch_step
    else
        row "the same in PyTorch" "not measured: $python has no PyTorch that sees the GPU"
    fi
    if ! $quick; then
        step "compute-sanitizer memcheck" sanitized memcheck
        step "compute-sanitizer racecheck" sanitized racecheck
    fi
fi
write_results
echo
cat "$results"
exit $((failed > 0))
