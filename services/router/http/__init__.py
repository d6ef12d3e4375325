"""The HTTP surface: OpenAI's endpoints under /v1, Impala's own under /imp/v1."""
