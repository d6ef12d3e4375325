"""grpcurl, the real one: every service is listed, described, healthy, and callable."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.stack import MODEL, Stack

GRPCURL = Path(sys.executable).with_name("grpcurl")
TUNNELLED = ("modelserver", "scheduler")
SERVICES = {
    "router": {"Inference", "Jobs", "Files", "Batches", "Runs", "BatchWorker"},
    "scheduler": {"Scheduler"},
    "modelserver": {"ModelServer", "KvControl", "WeightControl"},
    "kvstore": {"KvStore"},
    "leap": {"Leap"},
}
NAMES = [(name, each) for name, services in SERVICES.items() for each in sorted(services)]


def grpcurl(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [GRPCURL, "-plaintext", "-max-time", "20", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize("name", SERVICES)
def test_a_server_lists_its_services(stack: Stack, name: str) -> None:
    listed = set(grpcurl(stack.address(name), "list").stdout.split())
    ours = {f"impala.{name}.v1.{each}" for each in SERVICES[name]}
    standard = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert listed >= ours | standard
    tunnel = {"impala.common.v1.Tunnel"} if name in TUNNELLED else set()
    assert {each for each in listed if each.startswith("impala.")} == ours | tunnel


@pytest.mark.parametrize(("name", "service"), NAMES)
def test_a_service_serves(stack: Stack, name: str, service: str) -> None:
    request = json.dumps({"service": f"impala.{name}.v1.{service}"})
    done = grpcurl("-d", request, stack.address(name), "grpc.health.v1.Health/Check")
    assert json.loads(done.stdout) == {"status": "SERVING"}


CALLS = [
    ("router", "Inference/ListModels", "{}", '"id": "test-model"'),
    ("router", "Jobs/ListJobs", "{}", '"model": "test-model"'),
    ("router", "Files/ListFiles", "{}", "{"),
    ("router", "Batches/ListBatches", "{}", "{"),
    ("router", "Runs/ListRuns", "{}", "{"),
    ("scheduler", "Scheduler/GetFleets", "{}", "test-model.float32"),
    ("modelserver", "ModelServer/GetState", "{}", "test-model"),
    ("kvstore", "KvStore/Stats", "{}", '"tier": "memory"'),
    ("leap", "Leap/ListVersions", '{"model": "test-model"}', "digest"),
]


@pytest.mark.parametrize(("name", "method", "request_json", "part"), CALLS)
def test_a_method_answers(
    stack: Stack, name: str, method: str, request_json: str, part: str
) -> None:
    done = grpcurl("-d", request_json, stack.address(name), f"impala.{name}.v1.{method}")
    assert done.returncode == 0, done.stderr
    assert part in done.stdout


def test_a_chat_over_grpc_is_the_one_over_http(stack: Stack) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    request = json.dumps({"endpoint": "/v1/chat/completions", "body_json": json.dumps(body)})
    done = grpcurl("-d", request, stack.address("router"), "impala.router.v1.Inference/Complete")
    assert done.returncode == 0, done.stderr
    answer = json.loads(json.loads(done.stdout)["body_json"])
    assert answer["object"] == "chat.completion"
    assert answer["usage"]["completion_tokens"] == 2
