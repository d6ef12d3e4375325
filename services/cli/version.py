"""What `impala --version` says; `pyproject.toml` says the same."""

VERSION = "0.1.0"
