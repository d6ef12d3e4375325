"""Loads the weights that the settings name into a model that torch computes."""

from __future__ import annotations

import logging
import os

from libs.cpus import usable_cpus
from libs.demo.cache import cache_dir
from libs.errors import StartupError
from libs.models.resolve import resolve_model
from services.modelserver.config import ModelServerConfig
from services.modelserver.herd.engine.kv_cache import KvCache, blocks_within
from services.modelserver.herd.engine.precision import choose_precision
from services.modelserver.herd.engine.runner import Runner
from services.modelserver.herd.kernels.native import native_library
from services.modelserver.herd.models.loader import LoadedModel, load_model
from services.modelserver.model import ServedModel

log = logging.getLogger(__name__)


def load(config: ModelServerConfig) -> ServedModel:
    """Reads and packs the weights and makes the pool. Raises ModelError or StartupError."""
    threads = config.threads or usable_cpus()
    path = resolve_model(config.model, cache_dir(), log.info)
    precision = choose_precision(config.precision)
    native_library()  # built here once, or the first step that decodes would wait for gcc
    log.info("loading weights", extra={"path": str(path), "precision": precision})
    loaded = load_model(path, precision, threads)
    model = loaded.config
    pool = KvCache(_pool_blocks(config, loaded), model, loaded.kv_dtype)
    return ServedModel(
        vocab=model.vocab,
        max_context=model.max_context,
        eos_ids=frozenset(model.eos_ids),
        precision=loaded.precision,
        numerics=loaded.numerics_signature,
        digests=loaded.digests,
        pool=pool,
        runner=Runner(loaded.model, pool),
    )


def _pool_blocks(config: ModelServerConfig, loaded: LoadedModel) -> int:
    """The pool's size; refused here when it holds no block or is more than the machine has."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if config.kv_bytes > memory:
        raise StartupError(
            f"--kv-bytes of {config.kv_bytes} is more than this machine's {memory} bytes of memory."
        )
    try:
        return blocks_within(config.kv_bytes, loaded.config, loaded.kv_dtype)
    except ValueError as error:
        raise StartupError(f"{error}: give more --kv-bytes.") from None
