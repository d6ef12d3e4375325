"""What a batcher is told once."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatcherConfig:
    """Fixed for the batcher's life."""

    num_blocks: int
    """KV pool size in blocks of BLOCK_TOKENS tokens."""
    max_batch_tokens: int
    """Tokens fed per step at most; >= max_seqs, so that every running sequence gets one."""
    max_seqs: int
    """Sequences running at once at most."""
    prefill_chunk: int | None = None
    """Tokens of one sequence per step at most; None: up to the step's budget."""
    watermark_blocks: int | None = None
    """Blocks that an admission or a load must leave available while others run; None: 1 % of
    the pool."""
    external_tier: bool = False
    """Ask the external tier for what the pool does not hold."""

    def __post_init__(self) -> None:
        if self.max_seqs < 1 or self.max_batch_tokens < self.max_seqs:
            raise ValueError("need max_batch_tokens >= max_seqs >= 1")
        if self.prefill_chunk is not None and self.prefill_chunk < 1:
            raise ValueError("prefill_chunk must be at least 1")
        if self.watermark_blocks is not None and self.watermark_blocks < 0:
            raise ValueError("watermark_blocks must not be negative")

    @property
    def watermark(self) -> int:
        """The watermark in blocks, its default resolved."""
        if self.watermark_blocks is None:
            return self.num_blocks // 100
        return self.watermark_blocks

    @property
    def chunk_limit(self) -> int:
        """Tokens of one sequence per step, its default resolved."""
        return self.prefill_chunk or self.max_batch_tokens
