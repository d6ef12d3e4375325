"""What each kind of member says of itself under its lease."""

import msgspec


class ModelServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A model server that can be granted steps while `phase` is "serving"."""

    address: str
    incarnation: str
    model: str
    fleet: str
    precision: str
    phase: str
    source: str
    """Path, hub id or alias the weights came from: routers load the tokenizer from the same."""
    max_context: int
    vocab_size: int
    total_blocks: int
    max_steps: int = 32
    """Sequences that fit one engine step: what the scheduler fills it with."""
    weight_seq: int = 0
    weight_digest: str = ""
    """Hex, 32 bytes."""


class SchedulerInfo(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    incarnation: str


class RouterInfo(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    """gRPC address: where the scheduler sends Index and Execute."""
    http_url: str
    incarnation: str


class KvStoreInfo(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    incarnation: str


class LeapInfo(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    incarnation: str
