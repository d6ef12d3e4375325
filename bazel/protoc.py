"""protoc with the well-known types and the gRPC plugin, as a tool of the rules in python.bzl."""

from __future__ import annotations

import sys
from pathlib import Path

from grpc_tools import protoc


def main() -> int:
    well_known = Path(protoc.__file__).parent / "_proto"
    return int(protoc.main(["protoc", f"--proto_path={well_known}", *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
