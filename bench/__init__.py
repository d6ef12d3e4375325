"""Benchmarks: `python -m bench.NAME [--quick]`; see README.md."""

import os

# OpenMP reads it once, when torch is imported: its spinning barrier makes any neighbour look like
# a slow engine. The services are started with the same.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
