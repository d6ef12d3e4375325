"""The scheduler's ports over gRPC."""
