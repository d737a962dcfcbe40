#!/usr/bin/env bash
# Installs what is missing from Debian, builds a release and trains on Fashion-MNIST.
# Options go to the program: bash examples/quickstart.sh --partitions 1 (--help lists them).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(gcc libc6-dev make cmake pkg-config libstarpu-dev libhwloc-dev libdnnl-dev zlib1g-dev
    dataset-fashion-mnist)

installed() {
    [[ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]
}

missing=()
for package in "${packages[@]}"; do
    installed "$package" || missing+=("$package")
done
if ((${#missing[@]})); then
    echo "Installing ${missing[*]}"
    as_root=()
    if (($(id -u) != 0)); then
        as_root=(sudo)
    fi
    "${as_root[@]}" apt-get update -q
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends "${missing[@]}"
fi

log=build/release.log
mkdir -p build
echo "Building build/release (messages go to $log)"
if ! { cmake --preset release -DGRIDPIPE_TESTS=OFF -DGRIDPIPE_BENCH=OFF -DGRIDPIPE_EXAMPLES=ON &&
    cmake --build --preset release --parallel "$(nproc)"; } >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    exit 1
fi
exec build/release/examples/fashion_mnist "$@"
