#!/bin/sh
# Install what pyproject.toml asks for, in the versions of requirements.lock, for the image:
# install.sh VENV [dev]. Run in the folder of both files; with a folder `wheels` there, no package
# index is contacted.
set -eu
venv=$1
extra=${2:-}
tensorflow=${TENSORFLOW:-tensorflow-cpu}

rename() { sed "s/^tensorflow\([=><]\)/$tensorflow\1/"; }
rename < requirements.lock > locked.txt
python3 - "$extra" <<'PYTHON' | rename > wanted.txt
import sys, tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
extra = project["optional-dependencies"].get(sys.argv[1], [])
print("\n".join(extra or project["dependencies"]))
PYTHON

offline=
for wheel in ./*.whl; do
    [ ! -e "$wheel" ] || offline="--no-index --find-links ."
done

# pip itself is not installed there.
python3 -m venv pip
new=
[ -d "$venv" ] || { python3 -m venv --without-pip "$venv"; new=yes; }
# shellcheck disable=SC2086
pip/bin/python -m pip --python "$venv/bin/python" install --no-cache-dir --no-compile \
    --disable-pip-version-check --quiet $offline --constraint locked.txt --requirement wanted.txt
[ -n "$new" ] || exit 0

# Remove what is not used: headers, build tools of TensorFlow, tests of libraries.
packages=$(echo "$venv"/lib/python3*/site-packages)
rm -rf "$packages/tensorflow/include" "$packages/clang" "$packages"/numpy/*/tests \
    "$packages/matplotlib/tests"
if command -v strip >/dev/null; then
    strip "$packages"/tensorflow/libtensorflow_*
fi
# A container's root is read-only, so compile now, and only imported modules, to save space.
"$venv/bin/python" -c '
import ale_py, gymnasium, imageio_ffmpeg, libtmux, matplotlib.pyplot, numpy, psutil, rich
import PIL.Image, tensorboard.program, tensorboard.default, tensorflow as tf
tf.compat.v1.train.AdamOptimizer(), tf.distribute.Server
gymnasium.make("CartPole-v1").reset()
'
