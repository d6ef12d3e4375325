"""The command line: `impala`. What it starts, it supervises; all else goes over HTTP."""

import os

# gRPC reads it when it is loaded. What a refused handshake means to a user is said by the command;
# gRPC's own line on each try of it would only hide that.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
