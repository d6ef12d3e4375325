#!/bin/sh
# Build stage, the same for every service and so built once: /build/tools, an environment with pip
# and protoc, and the code of protos/ in /app/gen.
set -eu
cd /build
. image/pip.sh
python3 -m venv tools
tools/bin/pip install -q -c requirements.lock grpcio-tools mypy-protobuf
tools/bin/python scripts/gen_protos.py
find gen \( -name '*.pyi' -o -name '.*' -type f \) -delete
mkdir -p /app
mv gen /app/gen
