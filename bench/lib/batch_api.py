"""A batch over the HTTP API, as any OpenAI client would send it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Self

import httpx

TERMINAL = frozenset({"completed", "failed", "expired", "cancelled"})
POLL_S = 0.1


class BatchApi:
    """`with BatchApi(url) as api`."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=60.0, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def upload(self, path: Path) -> str:
        """The id of the file."""
        with path.open("rb") as file:
            answer = self._json(
                "POST", "/v1/files", files={"file": (path.name, file)}, data={"purpose": "batch"}
            )
        return str(answer["id"])

    def run(self, file_id: str, endpoint: str, within_s: float) -> tuple[dict[str, Any], float]:
        """(the batch as it ended, seconds from asking for it until it was seen to have ended).

        TimeoutError after `within_s`; the seconds are up to POLL_S too long.
        """
        started = time.perf_counter()
        body = {
            "input_file_id": file_id,
            "endpoint": endpoint,
            "completion_window": "24h",
        }
        batch = self._json("POST", "/v1/batches", json=body)
        while batch["status"] not in TERMINAL:
            if time.perf_counter() - started > within_s:
                raise TimeoutError(f"the batch is still {batch['status']} after {within_s:.0f} s")
            time.sleep(POLL_S)  # HTTP has no push for a batch: clients poll, and so do we
            batch = self._json("GET", f"/v1/batches/{batch['id']}")
        return batch, time.perf_counter() - started

    def ledger(self, run_id: str) -> dict[str, Any]:
        """The run's part of the ledger."""
        ledger: dict[str, Any] = self._json("GET", f"/imp/v1/runs/{run_id}")["ledger"]
        return ledger

    def _json(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        response = self._http.request(method, path, **request)
        if response.is_error:
            raise httpx.HTTPStatusError(
                f"{method} {path}: {response.status_code} {response.text[:500]}",
                request=response.request,
                response=response,
            )
        answer: dict[str, Any] = response.json()
        return answer
