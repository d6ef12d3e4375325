#!/bin/sh
# Build stage: /opt/impala, an environment of what the service's requirements.in names, at the
# versions of requirements.lock.
set -eu
cd /build
. image/pip.sh
python3 -m venv --without-pip /opt/impala
# An index for torch is looked in besides the usual one, as in scripts/setup.
tools/bin/pip --python /opt/impala/bin/python install -q -r requirements.in -c requirements.lock \
    ${IMPALA_TORCH_INDEX:+--extra-index-url "$IMPALA_TORCH_INDEX"}
# Tests and C++ headers that packages bring along: nothing that runs reads them.
site=$(/opt/impala/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
find "$site" -type d -name tests -prune -exec rm -rf {} +
rm -rf "$site/torch/include" "$site/torch/test"
