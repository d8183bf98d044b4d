#!/bin/sh
# Installs the gateway from a source tree into a virtual environment. Run by the Dockerfile, and by the suite in a clean place.
#   install.sh SOURCE PREFIX [EXTRA…]
# SOURCE is only read. What the Python that runs it has already, vLLM and torch among it, is used as it is and never replaced: what
# the gateway needs beside goes into PREFIX. Needs: a POSIX shell; Python 3.11 to 3.13 with venv (or uv); pip's usual way to an index.
#   PYTHON       the Python to use; unset: python3
#   PIP_…, UV_…  are pip's and uv's own
set -eu

source=$(CDPATH='' cd -- "${1:?SOURCE, the folder of pyproject.toml}" && pwd)
prefix=${2:?PREFIX, where the virtual environment goes}
shift 2
python=${PYTHON:-python3}
extras=$(printf '%s,' "$@")
extras=${extras%,}

say() { printf 'install: %s\n' "$*" >&2; }

if ! "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'; then
    say "error: $python is no Python 3.11, 3.12 or 3.13; set PYTHON"
    exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# A build leaves folders beside the source, which may be read-only; only what the package is made of is copied.
mkdir "$work/source"
cp -R "$source/pyproject.toml" "$source/README.md" "$source/LICENSE" "$source/server" "$work/source/"

say "making $prefix"
if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    "$python" -m venv "$prefix"
else
    uv venv --quiet --seed --python "$(command -v "$python")" "$prefix"  # images without ensurepip come with uv
fi
pip() { "$prefix/bin/python" -m pip --disable-pip-version-check --no-cache-dir "$@"; }

# `--system-site-packages` would miss those of a Python that is itself a virtual environment.
"$python" - > "$work/packages" <<'EOF'
import site
print(*site.getsitepackages(), sep="\n")
EOF
packages=$("$prefix/bin/python" -c 'import site; print(site.getsitepackages()[0])')
cp "$work/packages" "$packages/base-packages.pth"
pip uninstall --quiet --yes setuptools 2>/dev/null || :  # Python 3.11 brings an old one, which would stand before the base's

say "building the package"
pip wheel --quiet --no-deps --wheel-dir "$work" "$work/source"
wheel=$(echo "$work"/k3_gateway-*.whl)

# The package first, by itself: an older one that the base has may not stand in for it. Then what it needs, and nothing compiled here.
say "installing $(basename "$wheel")${extras:+ with $extras}"
pip install --quiet --no-deps --no-index --ignore-installed "$wheel"
version=$("$prefix/bin/python" -I -c 'from importlib.metadata import version; print(version("k3-gateway"))')
pip install --quiet --only-binary :all: "k3-gateway${extras:+[$extras]}==$version"

"$prefix/bin/k3-gateway" --version >/dev/null
say "installed k3-gateway $version"
