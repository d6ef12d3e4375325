"""Settings of a kvstore."""

from dataclasses import dataclass

from libs.config import ServiceConfig, parse_bytes, port_setting, setting


@dataclass(frozen=True, kw_only=True)
class KvStoreConfig(ServiceConfig):
    """`python -m services.kvstore.main --memory-bytes 4GiB`: the shared tiers of the KV cache."""

    port: int = port_setting(7073)
    memory_bytes: int = setting(
        1 << 30, "Bytes of blocks held in memory at most.", parse=parse_bytes, minimum=1 << 20
    )
