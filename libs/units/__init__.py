"""Quantities: durations and how they are summed up. Pure; cores may import it."""
