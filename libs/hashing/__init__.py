"""Names of KV blocks, the same for router, scheduler, model server and kvstore.

A block is `BLOCK_TOKENS` tokens. Its **content hash** names the account and every token up to its
end; its **KV key** mixes in what the KV bytes depend on besides the tokens (`KvNamespace`).
`tests/test_golden.py` pins the values: changing any of them orphans every stored block.
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

__all__ = [
    "BLOCK_TOKENS",
    "HASH_BYTES",
    "ContentChain",
    "KvNamespace",
    "account_salt",
    "checksum",
    "content_hashes",
    "kv_key",
    "kv_keys",
    "pack",
    "unpack",
]
