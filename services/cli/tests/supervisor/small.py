"""Small real processes to supervise, and a supervisor of some as a process of its own.

    python -m services.cli.tests.supervisor.small FOLDER

Each service NAME makes FOLDER/NAME.ready once it handles SIGTERM, and adds its name to FOLDER/order
when it is told to end.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from services.cli.core.backoff import Backoff
from services.cli.core.supervision import Unit
from services.cli.supervisor.service import Service
from services.cli.supervisor.supervisor import Supervisor

PROGRAM = """
import pathlib, signal, sys
folder, name, stubborn = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
def end(*_):
    with (folder / "order").open("a") as order:
        order.write(name + "\\n")
    if not stubborn:
        sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("says", name, flush=True)
(folder / (name + ".ready")).touch()
while True:
    signal.pause()
"""

QUICK = Backoff(first_s=0.05, longest_s=0.2, healthy_s=3600.0)


def service(
    folder: Path,
    name: str,
    *,
    start_stage: int = 0,
    stop_stage: int = 0,
    program: str = PROGRAM,
    stubborn: bool = False,
    grace_s: float = 30.0,
) -> Service:
    async def ready() -> bool:
        return (folder / f"{name}.ready").exists()

    flag = "stubborn" if stubborn else ""
    return Service(
        service=name,
        unit=Unit(name, start_stage, stop_stage, grace_s),
        command=[sys.executable, "-I", "-S", "-c", program, str(folder), name, flag],
        ports={"grpc": 1},
        probe=ready,
    )


def three(folder: Path) -> list[Service]:
    """Started a, then b and c; stopped c, b, a."""
    return [
        service(folder, "a", start_stage=0, stop_stage=2),
        service(folder, "b", start_stage=1, stop_stage=1),
        service(folder, "c", start_stage=1, stop_stage=0),
    ]


async def main(folder: Path) -> None:
    supervisor = Supervisor(three(folder), folder, backoff=QUICK)
    running = asyncio.create_task(supervisor.run())
    await supervisor.settled.wait()
    print(*(each.pid for each in supervisor.processes()), flush=True)
    await running


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
