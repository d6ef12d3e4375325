#!/bin/sh
# Build stage, last: compiles /app, because a user who may not write there would compile it anew at
# every start, and makes /state, what the service may write to.
set -eu
/opt/impala/bin/python -m compileall -q /app
mkdir -p /state/cache /state/objects
