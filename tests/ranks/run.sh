#!/usr/bin/env bash
# Runs tests/ranks/ranks.c on 2 to 4 ranks of this machine. Fails with the first command that does
# not do what it should.
#
#   bash tests/ranks/run.sh [BUILD]    BUILD: build/dev by default
set -uo pipefail
program=${1-build/dev}/tests/ranks/ranks_mpi

# Processes of one machine; no search for networks, and no binding: there may be more ranks than
# cores.
export OMPI_MCA_btl=vader,self OMPI_MCA_plm_rsh_agent=false
run=(timeout 100 mpirun --oversubscribe --bind-to none)
if (($(id -u) == 0)); then
    run+=(--allow-run-as-root)
fi

# expect STATUS COMMAND...
expect() {
    local wanted=$1 status
    shift
    "$@" 2>&1
    status=$?
    ((status == wanted)) && return
    echo "status $status instead of $wanted: $*"
    exit 1
}

# Every survivor of a rank that is killed or stopped says so. The command fails.
survivors() {
    local how=$1 victim=$2 ranks=$3 status=$4 out
    shift 4
    out=$(expect "$status" "${run[@]}" "$@" -n "$ranks" "$program" "$how" "$victim") || {
        echo "$out"
        exit 1
    }
    echo "$out"
    (($(grep -c "^rank [0-9]: \"rank $victim has given no sign of life" <<<"$out") == ranks - 1)) ||
        { echo "not all survivors of $how $victim have reported it" && exit 1; }
}

for ranks in 2 3 4; do
    expect 0 "${run[@]}" -n "$ranks" "$program" bits
done
for ranks in 2 3; do
    expect 0 "${run[@]}" -n "$ranks" "$program" errors
done
# Kernels for fewer instructions, on one rank.
out=$(expect 0 "${run[@]}" -n 1 "$program" kernels : -n 1 -x ONEDNN_MAX_CPU_ISA=SSE41 "$program" \
    kernels) || { echo "$out" && exit 1; }
echo "$out"
# A stopped process keeps mpirun going; of one that is killed, survivors report only if mpirun does
# not end them. Then its own status is 0. Most of the time all of them wait.
commands=()
for victim in 0 1 2; do
    survivors stop $victim 3 3 & commands+=($!)
    survivors kill $victim 3 0 --enable-recovery & commands+=($!)
done
for command in "${commands[@]}"; do
    wait "$command" || exit 1
done
expect 137 "${run[@]}" -n 2 "$program" kill 1

# The command: links are measured, and a plan is made with them.
command=${1-build/dev}/tools/gridpipe
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT

# told STATUS COMMAND...: as expect, but prints nothing where all is well
told() {
    out=$(expect "$@") || { echo "$out" && exit 1; }
}

for ranks in 2 3; do
    told 0 "${run[@]}" -n "$ranks" "$command" profile --network --timeout 50 --save "$folder/$ranks"
    (($(grep -cE '^ +[0-9] +[0-9] +[0-9.]+ +[0-9.]+$' <<<"$out") == ranks * (ranks - 1) / 2)) ||
        { echo "$out" && exit 1; }
    told 0 "$command" plan --machine "$folder/$ranks" --model "linear out=64; relu; linear out=9" \
        --input 64 --batch 16 --loss mse --optimizer "sgd lr=0.1" --timeout 1
done
told 2 "$command" profile --network
told 2 "${run[@]}" -n 2 "$command" profile --model relu --input 3
echo "links are measured, and plans made with them"
