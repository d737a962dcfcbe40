#!/usr/bin/env bash
# Prints the table of docs/scaling.md: steps of pipes over 1 to 512 nodes, all of them simulated.
#
#     bash docs/scaling.sh [GRIDPIPE]
#
# Nothing is measured, so the table is the same on every machine: the profile is written here, with
# 10 ms for a forward of a layer and 20 ms for its backward. The command is build/release/tools/gridpipe
# or the one that is named.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
gridpipe=${1:-$here/../build/release/tools/gridpipe}
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

# A model of $1 equal layers of $2 features.
model() { yes "linear out=$2" | head -n "$1" | paste -sd ';'; }

profile() {
  printf 'gridpipe-profile 2\ndevice cpu:0\nthreads 1\nbeside 0\nbytes_per_us 20000\nrows 256 0 0 0\n'
  printf 'sweeps 1\nprecise 1\nlayers %d\noperators %d\n' "$1" "$1"
  for ((k = 0; k < $1; k++)); do
    printf 'layer linear%d 10000000 10000000 0 20000000 0 263168 0 262144 0\n' "$k"
  done
  for ((k = 0; k < $1; k++)); do
    printf 'operator %d linear 10000000 10000000 20000000\n' "$k"
  done
}

# A cluster of $1 nodes of one device each, whose links take $2 ns and send $3 bytes/us.
cluster() {
  printf 'gridpipe-cluster 1\nnodes %d\ndevice 0-%d cpu:0 1 100 8589934592\n' "$1" $(($1 - 1))
  printf 'inside 0-%d 1000 20000\n' $(($1 - 1))
  [ "$1" = 1 ] || printf 'link 0-%d 0-%d %d %d\n' $(($1 - 1)) $(($1 - 1)) "$2" "$3"
}

# Step in ms, part of the time in which devices work, MiB of the fullest device.
plan() { # nodes chunks schedule
  "$gridpipe" plan --machine "$work/cluster" --profile "$work/profile" --model "$(model "$1" 256)" \
    --input 256 --batch $(($2 * 256)) --loss mse --optimizer "sgd lr=0.1" \
    --pipe "balance=$(yes 1 | head -n "$1" | paste -sd ,) chunks=$2 schedule=$3" |
    awk '/^predicted/ { ms = $2; for (k = 1; k < NF; k++) if ($k == "idle") idle = $(k + 1) }
         /^(rank:[0-9]+\/)?cpu:0 .* 8.00 GiB / {
           mib = $3 * ($4 == "GiB" ? 1024 : $4 == "MiB" ? 1 : 1 / 1024); most = mib > most ? mib : most }
         END { printf " %.0f | %.1f %% | %.1f |", ms, 100 - idle, most }'
}

echo "| devices | micro-batches | gpipe, ms | busy | MiB | 1f1b, ms | busy | MiB | 1f1b on 1 Gbit/s, ms | busy | MiB |"
echo "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
for nodes in 1 2 4 8 16 32 64 128 256 512; do
  chunks=$((nodes < 4 ? 8 : 2 * nodes))
  profile "$nodes" > "$work/profile"
  printf '| %d | %d |' "$nodes" "$chunks"
  cluster "$nodes" 10000 10000 > "$work/cluster"
  plan "$nodes" "$chunks" gpipe
  plan "$nodes" "$chunks" 1f1b
  cluster "$nodes" 100000 118 > "$work/cluster"
  plan "$nodes" "$chunks" 1f1b
  echo
done

# Replicas of a model of 8 layers with 4 MiB of parameters each. Step in ms, part of the time in which
# devices work, MiB of the fullest device.
layers=8 features=1024 chunks=16
replicated() { # replicas partitions shard_optimizer
  "$gridpipe" plan --machine "$work/cluster" --profile "$work/profile" --model "$(model $layers $features)" \
    --input $features --batch $(($1 * chunks * 256)) --loss mse --optimizer "adam lr=0.001" \
    --pipe "partitions=$2 replicas=$1 chunks=$chunks schedule=1f1b shard_optimizer=$3" |
    awk '/^predicted/ { ms = $2; for (k = 1; k < NF; k++) if ($k == "idle") idle = $(k + 1) }
         /^(rank:[0-9]+\/)?cpu:0 .* 8.00 GiB / {
           mib = $3 * ($4 == "GiB" ? 1024 : $4 == "MiB" ? 1 : 1 / 1024); most = mib > most ? mib : most }
         END { printf " %.0f | %.1f %% | %.0f |", ms, 100 - idle, most }'
}

echo
echo "| devices | replicas x partitions | ms | busy | MiB | sharded, ms | busy | MiB | on 1 Gbit/s, ms | busy | MiB |"
echo "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
profile $layers > "$work/profile"
for nodes in 1 8 64 512; do
  for partitions in 1 2 4 8; do
    ((partitions <= nodes)) || continue
    replicas=$((nodes / partitions))
    printf '| %d | %d x %d |' "$nodes" "$replicas" "$partitions"
    cluster "$nodes" 10000 10000 > "$work/cluster"
    replicated "$replicas" "$partitions" 0
    replicated "$replicas" "$partitions" 1
    cluster "$nodes" 100000 118 > "$work/cluster"
    replicated "$replicas" "$partitions" 0
    echo
  done
done
