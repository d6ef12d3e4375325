"""`python -m services.modelserver.main`: one Herd engine as a process."""

import os
import sys

from libs.config import parse_config
from libs.obs import setup_logging
from libs.rpc import run_service
from services.modelserver.config import ModelServerConfig


def main() -> None:
    config = parse_config(ModelServerConfig, sys.argv[1:], prog="modelserver")
    setup_logging(
        "modelserver", member=config.member, level=config.log_level, as_json=config.log_json
    )
    # Before torch is imported: OpenMP's default barrier spins, and on a machine with other work a
    # spinning thread delays the very one that it waits for.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from services.modelserver.serve import serve
    from services.modelserver.torch_model import load

    run_service(lambda shutdown: serve(config, shutdown, load), name="modelserver")


if __name__ == "__main__":
    main()
