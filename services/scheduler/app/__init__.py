"""The scheduler's shell: elections, and what the leader of each kind does."""
