"""An instance that speaks TLS: nothing else is answered, and every command works without a flag."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from libs.errors import Unavailable
from libs.rpc import ClientTls, call, connect
from services.cli.tls_files import TlsFiles
from tests.e2e.batches import chat_line
from tests.e2e.stack import MODEL, Stack, background, environment
from tests.e2e.test_grpc import GRPCURL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("tls")]
INTERNAL = ("scheduler", "modelserver", "kvstore", "leap")
SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("tls"), ["--tls"])
    stack.start()
    yield stack
    assert stack.stop() == 0


def ca_of(stack: Stack) -> Path:
    return stack.state.tls / "ca.crt"


def trusting(stack: Stack) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_of(stack))


async def health(stack: Stack, service: str, tls: ClientTls | None) -> int:
    async with connect(stack.address(service), tls) as channel:
        answer = await call(
            health_pb2_grpc.HealthStub(channel).Check,
            health_pb2.HealthCheckRequest(),
            timeout_s=20,
        )
    return int(answer.status)


def test_a_batch_through_the_command_line(stack: Stack, tmp_path: Path) -> None:
    assert stack.url.startswith("https://127.0.0.1:")
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f"{chat_line(f'q{i}', f'Hi {i}')}\n" for i in range(3)))
    submitted = stack.impala("batch", "submit", path, "--wait", "--json")
    assert submitted.code == 0, submitted.err
    batch_id = submitted.json["id"]
    whole = stack.impala("batch", "results", batch_id)
    assert sorted(json.loads(line)["custom_id"] for line in whole.out.splitlines()) == [
        "q0",
        "q1",
        "q2",
    ]
    for way in ([], ["--grpc", stack.address("router")]):
        followed = stack.impala("batch", "results", batch_id, "--follow", *way)
        assert followed.code == 0, followed.err
        assert sorted(followed.out.splitlines()) == sorted(whole.out.splitlines())


def test_run_uses_it(stack: Stack, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(chat_line("q", "Hi") + "\n")
    done = stack.impala("run", path, "-o", tmp_path / "out.jsonl", "--json")
    assert done.code == 0, done.err
    assert done.json["batch"]["status"] == "completed"


def test_what_is_kept_in_etcd_and_in_kvstores(stack: Stack) -> None:
    made = stack.impala("keys", "create", "--account", "a")
    assert made.code == 0, made.err
    assert [each["account"] for each in stack.impala("keys", "list", "--json").json] == ["a"]
    assert list(stack.impala("kv", "stats", "--json").json) == ["kvstore"]


def test_the_openai_client_trusts_the_ca(stack: Stack) -> None:
    http = openai.DefaultHttpxClient(verify=trusting(stack))
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", http_client=http) as client:
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_tokens=1
        )
    assert answer.choices[0].finish_reason == "length"


def test_the_program_that_up_shows_runs(stack: Stack, tmp_path: Path) -> None:
    shown = stack.said().partition("Try it:")[2]
    found = re.search(r"^  import ssl\n(?:  .*\n)+", shown, re.MULTILINE)
    assert found is not None, shown
    lines = [line.strip() for line in found[0].splitlines()]
    program = "\n".join(line for line in lines if "messages=[...]" not in line)
    program += "\nprint(*(model.id for model in client.models.list()))"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.stdout.split() == [MODEL], ran.stderr


def test_grpcurl_trusts_the_ca(stack: Stack) -> None:
    listed = subprocess.run(
        [GRPCURL, "-max-time", "20", "-cacert", ca_of(stack), stack.address("router"), "list"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert "impala.router.v1.Inference" in listed.stdout.split(), listed.stderr
    for said in (stack.said(), stack.impala("ps").err):
        assert str(ca_of(stack)) in said


def test_plain_http_is_refused(stack: Stack) -> None:
    with pytest.raises(httpx.TransportError), httpx.Client(trust_env=False) as client:
        client.get(stack.url.replace("https:", "http:") + "/health")


def test_no_one_else_vouches_for_it(stack: Stack) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{stack.url}/health", trust_env=False)


@pytest.mark.parametrize("service", [*INTERNAL, "router"])
async def test_plain_grpc_is_refused(stack: Stack, service: str) -> None:
    with pytest.raises(Unavailable):
        await health(stack, service, None)


@pytest.mark.parametrize("service", INTERNAL)
async def test_a_member_asks_for_a_certificate(stack: Stack, service: str) -> None:
    with pytest.raises(Unavailable):
        await health(stack, service, ClientTls(ca_of(stack)))
    assert await health(stack, service, TlsFiles(stack.state.tls).client()) == SERVING


async def test_a_client_of_the_router_needs_none(stack: Stack) -> None:
    assert await health(stack, "router", ClientTls(ca_of(stack))) == SERVING


def test_etcd_asks_for_a_certificate(stack: Stack) -> None:
    url = f"https://{stack.instance.etcd}/health"
    with pytest.raises(httpx.TransportError):
        httpx.get(url, verify=trusting(stack), trust_env=False)
    context = trusting(stack)
    context.load_cert_chain(stack.state.tls / "tls.crt", stack.state.tls / "tls.key")
    assert httpx.get(url, verify=context, trust_env=False).json()["health"] == "true"


@pytest.mark.parametrize("over", ["HTTP", "gRPC"])
def test_who_follows_a_batch_sees_every_line_once_though_processes_are_killed(
    stack: Stack, tmp_path: Path, over: str
) -> None:
    path = tmp_path / "in.jsonl"
    body = {"max_tokens": 16, "ignore_eos": True}
    path.write_text("".join(f"{chat_line(f'k{i}', f'Count to {i}', **body)}\n" for i in range(16)))
    batch_id = stack.impala("batch", "submit", path).out.strip()
    way = ["--grpc", stack.address("router")] if over == "gRPC" else []
    command = ["batch", "results", batch_id, "--follow", *way, "--state", str(stack.state.path)]
    with background(stack.home, *command) as following:
        assert following.stdout is not None
        first = following.stdout.readline()
        stack.kill("router")
        stack.kill("scheduler")
        rest = following.stdout.read()  # `communicate` would lose what `readline` read ahead
        _, said = following.communicate(timeout=200)
    assert following.returncode == 0, said
    ids = [json.loads(line)["custom_id"] for line in [first, *rest.splitlines()]]
    assert sorted(ids) == sorted(f"k{i}" for i in range(16))


def test_members_that_died_come_back_under_tls(stack: Stack) -> None:
    for name in ("etcd", "kvstore"):
        stack.kill(name)
    assert list(stack.impala("kv", "stats", "--json").json) == ["kvstore"]


def test_the_same_state_starts_again_with_the_same_ca(stack: Stack) -> None:
    """Last: it ends what the others use, and starts it again."""
    before = ca_of(stack).read_bytes()
    made = stack.impala("keys", "create", "--account", "kept")
    assert made.code == 0, made.err
    down = stack.impala("down")
    assert down.code == 0, down.err
    stack.stop()
    stack.start()
    assert ca_of(stack).read_bytes() == before
    accounts = [each["account"] for each in stack.impala("keys", "list", "--json").json]
    assert "kept" in accounts
