"""A model server whose model computes nothing, for tests: all else is the real one.

    python -m services.modelserver.testing --model FOLDER [the model server's flags]

Starts in a moment (no torch, no weights) and answers what `answer_token` says, so that a test can
tell a right answer from another request's. A token's "keys and values" are the token itself: the
answer is computed from the blocks of the paged pool, so that a wrong or half-written block, also
one that came back from a kvstore, changes it. FOLDER needs no weights; a router reads its
tokenizer.

Words in a prompt make the engine do as a broken one would: hang in the step that is fed them, or
kill the process.
"""

from __future__ import annotations

import array
import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from libs.config import parse_config, setting
from libs.hashing import BLOCK_TOKENS, WEIGHT_DIGEST_BYTES, weights_root
from libs.obs import setup_logging
from libs.rpc import run_service
from services.modelserver.config import ModelServerConfig
from services.modelserver.herd.core.plan import Chunk
from services.modelserver.herd.engine.sampled import RowSampling, Sampled
from services.modelserver.herd.models.digest import ModelDigests, TensorDigest
from services.modelserver.model import ServedModel
from services.modelserver.serve import serve

VOCAB = 512
MAX_CONTEXT = 8192
BLOCK_BYTES = 4 * BLOCK_TOKENS
PIECE_S = 0.005
"""How long a step goes on before it looks whether it is still wanted, as a layer would."""


@dataclass(frozen=True, kw_only=True)
class ScriptedConfig(ModelServerConfig):
    """The model server's settings and what the script needs."""

    step_s: float = setting(0.0, "Seconds that each engine step takes.", minimum=0)
    load_from: str = setting("", "A file read to its end before there is a model: a pipe holds it.")
    # Of the sorted byte-level alphabet these are the small letters.
    answers_from: int = setting(64, "First token id that is answered.", minimum=0)
    hang_on: str = setting("", "A step never ends that is fed this word of plain characters.")
    die_on: str = setting("", "A step kills the process that is fed this word.")
    answers_to: int = setting(89, "Last token id that is answered.", minimum=0, maximum=VOCAB - 1)


def answer_token(context: Sequence[int], first: int, last: int) -> int:
    """The token that follows these: any of first..last, by a hash of all of them."""
    digest = hashlib.blake2b(array.array("i", context).tobytes(), digest_size=8).digest()
    return first + int.from_bytes(digest, "little") % (last - first + 1)


def answer(prompt: Sequence[int], count: int, first: int, last: int) -> list[int]:
    """What a request is answered that asks for `count` tokens and ignores the end token."""
    context = list(prompt)
    for _ in range(count):
        context.append(answer_token(context, first, last))
    return context[len(prompt) :]


class TokenPool:
    """Blocks that hold their tokens' ids, as int32."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.block_bytes = BLOCK_BYTES
        self._ids = [array.array("i", [-1] * BLOCK_TOKENS) for _ in range(num_blocks)]

    def read_block(self, block: int) -> memoryview:
        return memoryview(self._ids[block].tobytes())

    def write_block(self, block: int, payload: bytes | bytearray | memoryview) -> None:
        self._ids[block] = array.array("i", bytes(payload))

    def layout_signature(self) -> str:
        return "scripted1"

    def put(self, table: Sequence[int], position: int, token: int) -> None:
        self._ids[table[position // BLOCK_TOKENS]][position % BLOCK_TOKENS] = token

    def context(self, table: Sequence[int], length: int) -> list[int]:
        """The first `length` tokens by a block table."""
        found: list[int] = []
        for block in table[: -(-length // BLOCK_TOKENS)]:
            found.extend(self._ids[block])
        return found[:length]


class ScriptedRunner:
    """Writes the fed tokens to the pool and answers from what the pool then holds."""

    def __init__(
        self,
        pool: TokenPool,
        config: ScriptedConfig,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._pool = pool
        self._config = config
        self._sleep = sleep
        self._hang_on, self._die_on = map(_tokens, (config.hang_on, config.die_on))

    def step(
        self,
        chunks: tuple[Chunk, ...],
        sampling: list[RowSampling],
        checkpoint: Callable[[], None],
    ) -> Sampled:
        self._take_time(checkpoint)
        tokens = [token for chunk in chunks for token in self._feed(chunk)]
        self._break(chunks)
        return Sampled(tokens, [None] * len(tokens))

    def _feed(self, chunk: Chunk) -> list[int]:
        for at, token in enumerate(chunk.tokens, chunk.start):
            self._pool.put(chunk.block_table, at, token)
        if not chunk.sample:
            return []
        context = self._pool.context(chunk.block_table, chunk.start + chunk.count)
        return [answer_token(context, self._config.answers_from, self._config.answers_to)]

    def _break(self, chunks: Sequence[Chunk]) -> None:
        """As a driver would that never returns, or one that takes the process with it."""
        if not (self._hang_on or self._die_on):
            return
        for chunk in chunks:
            context = self._pool.context(chunk.block_table, chunk.start + chunk.count)
            if _contains(context, self._die_on):
                os.kill(os.getpid(), signal.SIGKILL)
            while _contains(context, self._hang_on):
                self._sleep(PIECE_S)

    def _take_time(self, checkpoint: Callable[[], None]) -> None:
        left = self._config.step_s
        checkpoint()
        while left > 0:
            self._sleep(min(left, PIECE_S))
            left -= PIECE_S
            checkpoint()


def _tokens(word: str) -> list[int]:
    """Of characters that are tokens each, in the order of the byte-level alphabet."""
    return [ord(char) - ord("!") for char in word]


def _contains(context: Sequence[int], word: Sequence[int]) -> bool:
    count = len(word)
    return bool(count) and any(
        list(context[at : at + count]) == word for at in range(len(context) - count + 1)
    )


def load(config: ScriptedConfig) -> ServedModel:
    """A model without weights; its version is named by the script's settings."""
    if config.load_from:
        Path(config.load_from).read_bytes()
    pool = TokenPool(max(1, config.kv_bytes // BLOCK_BYTES))
    script = f"{config.answers_from}-{config.answers_to}".encode()
    digest = hashlib.blake2b(script, digest_size=WEIGHT_DIGEST_BYTES).digest()
    tensor = TensorDigest("float32", (1,), 4, digest)
    return ServedModel(
        vocab=VOCAB,
        max_context=MAX_CONTEXT,
        eos_ids=frozenset(),
        precision="float32",
        numerics="scripted1",
        digests=ModelDigests(weights_root(digest, {"script": digest}), digest, {"script": tensor}),
        pool=pool,
        runner=ScriptedRunner(pool, config),
    )


def main() -> None:
    config = parse_config(ScriptedConfig, sys.argv[1:], prog="modelserver")
    setup_logging(
        "modelserver", member=config.member, level=config.log_level, as_json=config.log_json
    )
    run_service(lambda shutdown: serve(config, shutdown, lambda _: load(config)), name="scripted")


if __name__ == "__main__":
    main()
