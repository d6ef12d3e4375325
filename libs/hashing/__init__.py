"""Names of KV blocks and of weights, the same for all services.

A block is `BLOCK_TOKENS` tokens. Its **content hash** names the account and every token up to its
end; its **KV key** mixes in what the KV bytes depend on besides the tokens (`KvNamespace`).
A weight version is named by the root over its configuration and tensors (`weights_root`).
`tests/test_golden.py` pins the values: changing any of them orphans every stored block, or gives
every registered version another identity.
"""

from libs.hashing.checksum import checksum
from libs.hashing.content import (
    BLOCK_TOKENS,
    ContentChain,
    account_salt,
    content_hashes,
    pack,
    unpack,
)
from libs.hashing.domain import HASH_BYTES
from libs.hashing.kv_key import KvNamespace, kv_key, kv_keys
from libs.hashing.weights import WEIGHT_DIGEST_BYTES, weights_root

__all__ = [
    "BLOCK_TOKENS",
    "HASH_BYTES",
    "WEIGHT_DIGEST_BYTES",
    "ContentChain",
    "KvNamespace",
    "account_salt",
    "checksum",
    "content_hashes",
    "kv_key",
    "kv_keys",
    "pack",
    "unpack",
    "weights_root",
]
