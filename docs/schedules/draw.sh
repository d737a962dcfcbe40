#!/usr/bin/env bash
# Draws docs/schedules/*.svg: one model with eight equal layers (a forward of 1 ms, a backward of 2
# ms, even.profile), in eight micro-batches on four devices, in each of the built-in schedules.
# hwloc pretends the devices, and nothing runs.
# Usage: bash docs/schedules/draw.sh [PATH OF THE gridpipe COMMAND]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

gridpipe=${1-../../build/release/tools/gridpipe}
model='linear out=64; linear out=64; linear out=64; linear out=64;
       linear out=64; linear out=64; linear out=64; linear out=64'

draw() { # ORDER BALANCE
    HWLOC_SYNTHETIC='core:4 pu:1' "$gridpipe" plan --model "$model" --input 64 --batch 64 --loss mse \
        --profile even.profile --task-us 0 \
        --pipe "balance=$2 chunks=8 checkpoint=never schedule=$1" --svg "$1.svg" >/dev/null
}

draw gpipe 2,2,2,2
draw 1f1b 2,2,2,2
draw interleaved 1,1,1,1,1,1,1,1
draw zb-h1 2,2,2,2
draw auto 2,2,2,2
