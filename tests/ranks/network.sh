#!/usr/bin/env bash
# Trains over two hosts: network namespaces of their own, with names of their own, joined by a link of
# 1 Gbit/s. The parameters are those of one process. Status 77: such hosts cannot be made here; the last
# line says why.
#
#   bash tests/ranks/network.sh [BUILD]              BUILD: build/dev by default
#   bash tests/ranks/network.sh --run COMMAND...     runs a command on both hosts instead
set -uo pipefail
a=gridpipe-$$-a b=gridpipe-$$-b
folder=$(mktemp -d)

undo() {
    ip netns del "$a" 2>/dev/null
    ip netns del "$b" 2>/dev/null
    rm -r "$folder"
}
trap undo EXIT

skip() {
    echo "$1"
    exit 77
}

# host NAME INTERFACE ADDRESS
host() {
    ip link set "$2" netns "$1" &&
        ip -n "$1" addr add "$3/24" dev "$2" &&
        ip -n "$1" link set "$2" up &&
        ip -n "$1" link set lo up &&
        ip netns exec "$1" tc qdisc add dev "$2" root tbf rate 1gbit burst 128kb latency 50ms
}

make_hosts() {
    ((EUID == 0)) && command -v ip tc >/dev/null || skip "network namespaces need root, ip and tc"
    ip netns add "$a" 2>"$folder/why" && ip netns add "$b" 2>"$folder/why" ||
        skip "no network namespaces: $(tail -n 1 "$folder/why")"
    ip link add "gp$$a" type veth peer name "gp$$b" 2>"$folder/why" &&
        host "$a" "gp$$a" 10.77.0.1 2>"$folder/why" && host "$b" "gp$$b" 10.77.0.2 2>"$folder/why" ||
        skip "no link of 1 Gbit/s: $(tail -n 1 "$folder/why")"
}

# What mpirun starts processes on another host with: a shell in the other namespace.
cat >"$folder/agent" <<END
#!/usr/bin/env bash
shift
exec ip netns exec $b unshare --uts bash -c "hostname $b; \$*"
END
chmod +x "$folder/agent"

on_both() {
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl=tcp,self
    export OMPI_MCA_btl_tcp_if_include=10.77.0.0/24 OMPI_MCA_oob_tcp_if_include=10.77.0.0/24
    export OMPI_MCA_plm_rsh_agent=$folder/agent
    local variable pass=()
    for variable in "${!STARPU_@}" "${!HWLOC_@}" "${!OMPI_MCA_@}"; do
        pass+=(-x "$variable")
    done
    ip netns exec "$a" unshare --uts bash -c 'hostname "$0"; exec "$@"' "$a" \
        timeout 300 mpirun --host "$a:1,10.77.0.2:1" -n 2 --map-by node --bind-to none "${pass[@]}" "$@"
}

make_hosts
if [[ ${1-} == --run ]]; then
    on_both "${@:2}"
    exit
fi

data=/usr/share/datasets/fashion-mnist
[[ -e $data/t10k-images-idx3-ubyte.gz ]] || skip "the package dataset-fashion-mnist is not installed"
command=$PWD/${1-build/dev}/tools/gridpipe
train=(train --model "conv2d out=8 kernel=3 padding=1; relu; maxpool2d kernel=2; flatten; linear out=10"
    --input "$data/t10k-images-idx3-ubyte.gz" --target "$data/t10k-labels-idx1-ubyte.gz"
    --shape 1,28,28 --std 255 --limit 1500 --batch 100 --chunks 4 --watchdog 60)
"$command" "${train[@]}" --save-params "$folder/alone" || exit 1
on_both "$command" "${train[@]}" --partitions 2 --save-params "$folder/both" || exit 1
cmp "$folder/alone" "$folder/both"
