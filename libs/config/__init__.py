"""Frozen dataclasses as configuration, read from flags and the environment.

    @dataclass(frozen=True, kw_only=True)
    class KvStoreConfig(ServiceConfig):
        port: int = port_setting(7073)
        memory_bytes: int = setting(1 << 30, "Bytes of blocks held.", parse=parse_bytes, minimum=1)

    config = parse_config(KvStoreConfig, sys.argv[1:], prog="kvstore")

A field `memory_bytes` is the flag `--memory-bytes` and the variable `IMPALA_MEMORY_BYTES`; a flag
beats the environment, which beats the default. A wrong one is one sentence and exit code 2.
"""

from libs.config.exposure import check_exposure, is_loopback
from libs.config.fields import ConfigError, parse_bytes, port_setting, setting
from libs.config.reader import parse_config, read_config
from libs.config.service import ServiceConfig

__all__ = [
    "ConfigError",
    "ServiceConfig",
    "check_exposure",
    "is_loopback",
    "parse_bytes",
    "parse_config",
    "port_setting",
    "read_config",
    "setting",
]
