# shellcheck shell=bash
# An nvcc for the kernels (gpu/cuda/image.cmake): the one that is installed, else one of PyPI in a folder of the
# caller's. Nothing is installed into the system. Sourced by tests/run and deploy/bundle; a packager may:
#
#   . deploy/lib/nvcc.sh; nvcc=$(nvcc_get FOLDER) && cmake -DCAIRN_NVCC="$nvcc" ...
#
# It is CUDA 13.0's, since there is no other: PyPI's packages of CUDA 12 (nvidia-cuda-nvcc-cu12) have ptxas and libnvvm,
# but not nvcc. Its image is for drivers of 580 and later, and of the releases of CUDA 13 the oldest is taken, since the
# driver of a newer one reads its PTX and not the other way round. For drivers of CUDA 12 (525 and later) an nvcc of
# 12.8 or 12.9 has to be installed. nvcc.txt has versions and hashes. What is fetched is under NVIDIA's license, which
# it brings along; the image is ours.

nvcc_wheels=${BASH_SOURCE[0]%/*}/nvcc.txt
nvcc_seconds=120 # at most, for fetching

# nvcc_is_good NVCC: it is one, and compiles for the newest card of the image.
nvcc_is_good() {
    local folder status=0
    [ -x "$1" ] || return 1
    folder=$(mktemp -d)
    echo '__global__ void probe(int *at) { *at = 1; }' >"$folder/probe.cu"
    "$1" -fatbin -arch=sm_120 -o "$folder/probe.fatbin" "$folder/probe.cu" >"$folder/log" 2>&1 || status=1
    rm -rf "$folder"
    return $status
}

# nvcc_installed: prints the one that a build finds by itself, if it is good.
nvcc_installed() {
    local found=${CAIRN_NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
    nvcc_is_good "$found" && echo "$found"
}

# nvcc_pip FOLDER: sets `pip`. Debian's python3 may have none, but what makes environments brings one.
nvcc_pip() {
    pip=(python3 -m pip)
    "${pip[@]}" --version >/dev/null 2>&1 && return
    python3 -m venv "$1/venv" && pip=("$1/venv/bin/pip")
}

# nvcc_fetch FOLDER: downloads and unpacks it there, 380 MB, and prints its path; what is there already is taken.
# 1: it could not be had, and a line of why on stderr.
nvcc_fetch() {
    local folder=$1 pip wheel nvcc=$1/nvidia/cu13/bin/nvcc
    if nvcc_is_good "$nvcc"; then echo "$nvcc"; return; fi
    mkdir -p "$folder/wheels" || return
    if ! { nvcc_pip "$folder" && timeout "$nvcc_seconds" "${pip[@]}" download --no-deps --require-hashes \
        --only-binary :all: --retries 1 --timeout 15 --dest "$folder/wheels" --requirement "$nvcc_wheels"
    } >"$folder/log" 2>&1 </dev/null; then
        echo "PyPI does not give nvcc within $nvcc_seconds s: $(tail -n 1 "$folder/log")" >&2
        return 1
    fi
    for wheel in "$folder"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$folder" || return; done
    chmod +x "$folder"/nvidia/cu13/bin/* "$folder"/nvidia/cu13/nvvm/bin/* # zipfile forgets modes
    rm -rf "$folder/wheels" "$folder/venv"
    if ! nvcc_is_good "$nvcc"; then
        echo "PyPI's nvcc does not compile here: $("$nvcc" --version 2>&1 | tail -n 1)" >&2
        return 1
    fi
    echo "$nvcc"
}

# nvcc_get FOLDER: prints the path of one: installed, or fetched.
nvcc_get() { nvcc_installed || nvcc_fetch "$1"; }
