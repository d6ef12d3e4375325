"""An S3-compatible server process: moto's, with conditional writes and multipart uploads.

Objects live in its memory and go with it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.error import URLError
from urllib.request import Request, urlopen

HOST = "127.0.0.1"
BUCKET = "bucket"
KEYS = {"access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}
"""Options of `libs.objects.open_store`, besides the endpoint."""
START_WITHIN_S = 60.0


def environment(endpoint: str) -> dict[str, str]:
    """What a process needs to use the bucket at that endpoint, as object stores read it."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEYS["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": KEYS["secret_access_key"],
        "AWS_REGION": KEYS["region"],
    }


class S3Process:
    """`with S3Process() as s3`: entered when the bucket is there. checks_keys: nobody is let in but
    who has a user's keys, and there is no user."""

    def __init__(self, port: int = 0, *, checks_keys: bool = False) -> None:
        self._port = port
        self._checks_keys = checks_keys

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def port(self) -> int:
        return self._port

    def __enter__(self) -> Self:
        if not self._port:
            with socket.create_server((HOST, 0)) as probe:
                self._port = probe.getsockname()[1]
        # Making the bucket is the one call that may come without keys.
        env = os.environ | ({"INITIAL_NO_AUTH_ACTION_COUNT": "1"} if self._checks_keys else {})
        self._log = tempfile.NamedTemporaryFile(prefix="impala-s3-", suffix=".log")
        command = [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(self._port)]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log, env=env)
        try:
            self._make_bucket()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _make_bucket(self) -> None:
        deadline = time.monotonic() + START_WITHIN_S
        request = Request(f"{self.endpoint}/{BUCKET}", method="PUT")
        while True:
            try:
                urlopen(request, timeout=START_WITHIN_S).close()
                return
            except URLError:
                told = Path(self._log.name).read_text(errors="replace")
                assert self._process.poll() is None, told
                assert time.monotonic() < deadline, told
            try:
                self._process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
