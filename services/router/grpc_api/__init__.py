"""The public gRPC API and the batch worker, thin over the same objects as the HTTP surface."""
