# shellcheck shell=bash
# Installs the Debian packages that are missing. Sourced by deploy/quickstart and tests/run.

packages_list=${BASH_SOURCE[0]%/*}/packages.txt

# package_is_there PACKAGE PROGRAM: the package is installed, or the program stands for it.
package_is_there() {
    if [ "$2" != - ] && command -v "$2" >/dev/null; then return 0; fi
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# packages_missing WHO...: the packages that one of these needs and that are not there, a line each.
packages_missing() {
    local who package program
    while read -r who package program; do
        [[ " $* " == *" $who "* ]] || continue
        package_is_there "$package" "$program" || echo "$package"
    done < <(grep -v '^#' "$packages_list")
}

# One at a time on this machine: apt-get update does not wait for another one by itself.
apt_get_locked() (
    exec 9>/run/cairn-apt.lock
    flock -w 600 9 || { echo "another apt-get of Cairn has been running for 10 minutes" >&2; exit 1; }
    export DEBIAN_FRONTEND=noninteractive
    # A package brings no service up (etcd-server would): only programs are asked for.
    if [ ! -e /usr/sbin/policy-rc.d ]; then
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
        printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d && chmod 755 /usr/sbin/policy-rc.d
    fi
    apt-get -q -o Acquire::Retries=3 update &&
        apt-get -q -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 install -y \
            --no-install-recommends "$@"
)

# packages_install WHO...: nothing is asked of the network when nothing is missing. Exits with 2 when
# packages are missing and only root could install them, with 1 when they could not be installed.
packages_install() {
    local missing
    mapfile -t missing < <(packages_missing "$@")
    [ "${#missing[@]}" -gt 0 ] || return 0
    if [ "$(id -u)" -ne 0 ]; then
        echo "packages are missing; install them, and start this again:" >&2
        echo "  sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
        exit 2
    fi
    echo "installing ${missing[*]}"
    if ! apt_get_locked "${missing[@]}" </dev/null || [ -n "$(packages_missing "$@")" ]; then
        echo "could not install: $(packages_missing "$@" | tr '\n' ' ')" >&2
        exit 1
    fi
}
