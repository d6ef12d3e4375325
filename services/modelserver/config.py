"""Settings of a model server."""

from dataclasses import dataclass

from libs.config import ServiceConfig, parse_bytes, port_setting, setting


@dataclass(frozen=True, kw_only=True)
class ModelServerConfig(ServiceConfig):
    """`python -m services.modelserver.main --model smollm2-135m`."""

    port: int = port_setting(7072)
    model: str = setting("smollm2-135m", "Alias, folder, .gguf file or hub id of the weights.")
    model_name: str = setting("", "Name that requests use; empty: as --model.")
    precision: str = setting(
        "auto",
        "Weight precision; auto is float16 on a CPU.",
        choices=("auto", "float32", "float16", "int8"),
    )
    threads: int = setting(
        0, "Threads of the engine; 0: the cores this process may use.", minimum=0
    )
    kv_bytes: int = setting(2 << 30, "Bytes of the paged KV pool.", parse=parse_bytes, minimum=1)
    max_batch_tokens: int = setting(256, "Tokens fed per engine step at most.", minimum=1)
    max_seqs: int = setting(32, "Sequences in one engine step at most.", minimum=1)
    max_context: int = setting(0, "Longest context served; 0: the model's.", minimum=0)
    max_waiting: int = setting(1024, "Steps queued here before new ones are refused.", minimum=1)
    step_limit_s: float = setting(
        300.0,
        "Seconds that one engine step may take; a server that hangs for longer ends, to be started "
        "again. 0: no limit.",
        minimum=0,
    )
    lower_tiers: bool = setting(True, "Keep evicted KV blocks in the kvstore and look there.")
    store_buffer_bytes: int = setting(
        256 << 20, "Evicted KV waiting to be stored at most.", parse=parse_bytes, minimum=0
    )
