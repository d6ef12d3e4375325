"""The front door: HTTP and the public gRPC API."""
