"""Processes: spawned, watched, restarted, drained. `core.supervision` decides, this acts."""
