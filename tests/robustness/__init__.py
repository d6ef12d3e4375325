"""Faults injected into a real cluster while batches run, and a model that the history must obey.

`python -m bench.faults` runs campaigns of any length; README.md tells how to read one.
"""
