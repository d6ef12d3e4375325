"""Settings of a scheduler."""

from dataclasses import dataclass

from libs.config import ServiceConfig, port_setting, setting


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig(ServiceConfig):
    """`python -m services.scheduler.main --objects DIR-or-URL`: leads fleets, or stands by."""

    port: int = port_setting(7071)
    objects: str = setting(
        "./impala-objects", "Object store: a folder, or an s3://, gs:// or az:// URL."
    )
    election_ttl_s: int = setting(
        5, "Seconds until a dead leader's place is free.", minimum=1, maximum=60
    )
    flush_s: float = setting(
        0.5, "Seconds that a line's outcome may wait to be recorded.", minimum=0.01, maximum=60
    )
    line_attempts: int = setting(
        12,
        "Times that a line of a batch is handed out in vain before it ends as an error.",
        minimum=1,
    )
    line_losses: int = setting(
        6,
        "Servers that may be lost while they run one line, before it ends as an error.",
        minimum=1,
    )
    line_retry_s: float = setting(
        1800.0,
        "Seconds from a line's first hand-out, or last loss, in which it is retried.",
        minimum=0,
    )
    overcommit: float = setting(
        1.5, "Steps granted per sequence of a server's batch; 1 = none wait there.", minimum=1
    )
    max_queue: int = setting(20_000, "Steps of a fleet that may wait for a grant.", minimum=1)
