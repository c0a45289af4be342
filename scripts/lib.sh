# Shared by the scripts in this directory: packages, the toolchain, the build, the binary under test, and a working
# directory that is unmounted and removed whatever happens. Sourced, not run.
# shellcheck shell=bash

set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
TARGET_DIR="${CARGO_TARGET_DIR:-$ROOT/target}"
RUST_MINOR_MIN=90
# Installed where there is none: the newest whose lints the code has been checked with.
RUST_VERSION=1.99.1
WORK=""
KEEP=""

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

# Ends the script: $1 is the exit code, the rest what happened and what to do.
die() {
    local code="$1"
    shift
    say "$@"
    exit "$code"
}

# Prints the comment at the head of the calling script.
usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; }

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die 2 "root is needed for: $*; run this as root or install sudo"
    fi
}

# need_package COMMAND PACKAGE...: installs the packages if the command is missing.
need_package() {
    local command="$1"
    shift
    if command -v "$command" >/dev/null; then return; fi
    command -v apt-get >/dev/null || die 2 "'$command' is missing; install it (Debian: $*) and run this again"
    say "installing $*"
    as_root apt-get update -q >/dev/null || say "apt-get update failed; trying with the lists there are"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q "$@" >/dev/null ||
        die 2 "cannot install $*; do it by hand and run this again"
}

need_fuse() {
    need_package fusermount3 fuse3
    if [ ! -e /dev/fuse ]; then
        as_root modprobe fuse 2>/dev/null || true
    fi
    [ -e /dev/fuse ] || die 2 "/dev/fuse is missing: load the kernel module fuse, or give the container --device /dev/fuse"
}

rust_is_new_enough() {
    local version
    command -v cargo >/dev/null || return 1
    version="$(cd "$ROOT" && cargo --version 2>/dev/null)" || return 1
    [[ "$version" =~ ^cargo\ 1\.([0-9]+) ]] && [ "${BASH_REMATCH[1]}" -ge "$RUST_MINOR_MIN" ]
}

need_rust() {
    need_package cc gcc libc6-dev
    if [ -d "$HOME/.cargo/bin" ]; then PATH="$HOME/.cargo/bin:$PATH"; fi
    if rust_is_new_enough; then return; fi
    if ! command -v rustup >/dev/null && command -v apt-get >/dev/null; then
        say "no Rust 1.$RUST_MINOR_MIN or newer; trying the package rustup"
        as_root apt-get update -q >/dev/null || true
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q rustup >/dev/null 2>&1 || true
    fi
    if command -v rustup >/dev/null; then
        rustup toolchain install "$RUST_VERSION" --profile minimal && rustup default "$RUST_VERSION"
    fi
    rust_is_new_enough ||
        die 2 "Rust 1.$RUST_MINOR_MIN or newer is needed: see https://www.rust-lang.org/tools/install, then run this again"
}

# need_cargo COMMAND COMPONENT PACKAGE: a command of cargo's that neither rustup's minimal profile nor Debian's cargo has.
need_cargo() {
    if cargo "$1" --version >/dev/null 2>&1; then return; fi
    if command -v rustup >/dev/null; then rustup component add "$2"; else need_package "cargo-$1" "$3"; fi
}

# Sets LOCKWOOD_BIN: the one that was given, or one built here.
build_lockwood() {
    if [ -n "${LOCKWOOD_BIN:-}" ]; then
        [ -x "$LOCKWOOD_BIN" ] || die 2 "LOCKWOOD_BIN=$LOCKWOOD_BIN cannot be run"
        LOCKWOOD_BIN="$(realpath "$LOCKWOOD_BIN")"
    else
        need_rust
        say "building lockwood, which takes some minutes the first time"
        (cd "$ROOT" && cargo build --release --locked --quiet --bin lockwood)
        LOCKWOOD_BIN="$TARGET_DIR/release/lockwood"
    fi
    export LOCKWOOD_BIN
}

# build_example NAME: sets EXAMPLE to the program; LOCKWOOD_EXAMPLES is a directory that has it already.
build_example() {
    EXAMPLE="${LOCKWOOD_EXAMPLES:-}/$1"
    if [ -n "${LOCKWOOD_EXAMPLES:-}" ] && [ -x "$EXAMPLE" ]; then return; fi
    need_rust
    say "building $1"
    (cd "$ROOT" && cargo build --profile load --locked --quiet --example "$1")
    # Read by the scripts that source this file.
    # shellcheck disable=SC2034
    EXAMPLE="$TARGET_DIR/load/examples/$1"
}

# Sets PROOF: the directory of the programs with rules that can be switched off.
build_proof() {
    need_rust
    say "building with rules that can be switched off"
    (cd "$ROOT" && cargo build --profile load --locked --quiet --features proof \
        --example lockwood-proof --example mutation --example explore --example model)
    # Read by the scripts that source this file.
    # shellcheck disable=SC2034
    PROOF="$TARGET_DIR/load/examples"
}

lockwood() { "$LOCKWOOD_BIN" "$@"; }

# Mount points at or below a directory, the deepest first.
mounts_below() {
    local point dir
    dir="$(realpath -m "$1")"
    while read -r _ point _; do
        printf -v point '%b' "$point"
        case "$point/" in "$dir"/*) printf '%s\n' "$point" ;; esac
    done </proc/self/mounts | sort -r
}

# Unmounts a mount point, politely if its daemon lives, else by force.
unmount() {
    timeout --foreground -k 5 150 "$LOCKWOOD_BIN" umount "$1" >/dev/null 2>&1 || true
    if is_mounted "$1"; then fusermount3 -u "$1" 2>/dev/null || true; fi
    if is_mounted "$1"; then force_unmount "$1"; fi
}

# force_unmount DIR: at once; as root whoever waits there is told so.
force_unmount() {
    if [ "$(id -u)" -eq 0 ]; then
        umount -f -l "$1"
    else
        fusermount3 -uz "$1" 2>/dev/null || as_root umount -f -l "$1"
    fi
}

# Whether something is mounted there, alive or dead.
is_mounted() { mounts_below "$1" | grep -qxF -- "$(realpath -m "$1")"; }

# work_dir [PARENT]: sets WORK to a fresh directory; when the script ends, all mounts in it are unmounted and it is
# removed (kept if KEEP is set). May be called once more for a second place: $WORKS has them all.
WORKS=()
work_dir() {
    WORK="$(mktemp -d "${1:-${TMPDIR:-/tmp}}/lockwood-${0##*/}.XXXXXX")"
    WORKS+=("$WORK")
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
}

# Of those that have ended the numbers may be other processes' by now.
kill_jobs() { jobs -rp | xargs -r kill -KILL 2>/dev/null || true; }

clean_up() {
    local code=$? work point
    trap '' INT TERM HUP
    if declare -F before_clean_up >/dev/null; then before_clean_up; fi
    # What this script has started and still runs would keep the mounts busy.
    kill_jobs
    wait 2>/dev/null || true
    for work in "${WORKS[@]}"; do
        while read -r point; do unmount "$point" || true; done < <(mounts_below "$work")
        if [ -n "$(mounts_below "$work")" ]; then
            say "$work is still mounted; unmount it and remove it"
        elif [ -n "$KEEP" ]; then
            say "kept $work"
        else
            rm -rf "$work"
        fi
    done
    trap - EXIT
    exit "$code"
}

# Runs a program so that a signal to this script ends it at once: bash sees to a trap only when nothing is in front.
attend() {
    "$@" &
    wait $!
}

# mount_store STORE DIR [OPTIONS]: makes the mount point and mounts.
mount_store() {
    mkdir -p "$2" 2>/dev/null || true
    if [ -n "${3:-}" ]; then
        lockwood mount "$1" "$2" -o "$3"
    else
        lockwood mount "$1" "$2"
    fi
}

# The process id of the daemon behind a mount.
daemon_pid() {
    local pid
    pid="$(lockwood status "$1" --json | grep -o '"pid"[[:space:]]*:[[:space:]]*[0-9]\+' | grep -o '[0-9]\+$' | head -n 1)" ||
        pid=""
    [ -n "$pid" ] || die 2 "'lockwood status --json' names no pid"
    printf '%s\n' "$pid"
}
