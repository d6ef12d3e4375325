"""What is said when a command cannot do its work: one sentence, an exit code, no traceback."""

from __future__ import annotations

import json
import socket
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from libs.testing.rpc import free_port
from services.cli.main import main

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("IMPALA_URL", "IMPALA_API_KEY", "IMPALA_STATE", "IMPALA_ETCD"):
        monkeypatch.delenv(name, raising=False)


class Said:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


Impala = Callable[..., Said]


@pytest.fixture
def impala(capsys: pytest.CaptureFixture[str]) -> Impala:
    def run(*arguments: str | Path) -> Said:
        code = main([str(each) for each in arguments])
        out, err = capsys.readouterr()
        return Said(code, out, err)

    return run


def assert_one_sentence(said: Said, code: int, *parts: str) -> None:
    assert said.code == code
    assert said.err.startswith("impala: ")
    assert said.err.count("\n") == 1, said.err
    for part in parts:
        assert part in said.err


def request(model: str = "smollm2-135m", custom_id: str = "a") -> str:
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    url = "/v1/chat/completions"
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text(f"{request()}\n{request(custom_id='b')}\n")
    return path


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["up", "--modle", "x"], "--modle"),
        (["up", "--servers", "0"], "--servers"),
        (["up", "--precision", "int3"], "int3"),
        (["up", "--http-port", "eighty"], "--http-port"),
        (["up", "--kv-bytes", "much"], "--kv-bytes"),
        (["upp"], "upp"),
        (["batch", "status"], "BATCH"),
        (["run", "in.jsonl"], "--output"),
    ],
)
def test_a_wrong_flag(impala: Impala, arguments: Sequence[str], part: str) -> None:
    assert_one_sentence(impala(*arguments), 2, part)


def test_a_missing_model(impala: Impala) -> None:
    said = impala("up", "--model", "no-such", "--http-port", "0")
    assert_one_sentence(said, 1, "There is no model 'no-such'", "smollm2-135m")


def test_a_model_folder_without_a_model(impala: Impala, tmp_path: Path) -> None:
    said = impala("up", "--model", tmp_path, "--http-port", "0")
    assert_one_sentence(said, 1, "no config.json")


def test_an_http_port_in_use(impala: Impala, tmp_path: Path) -> None:
    model = tmp_path / "m"
    model.mkdir()
    (model / "config.json").write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        said = impala("up", "--model", model, "--http-port", str(port))
    assert said.code == 1
    assert f"impala: Port {port} is in use" in said.err
    assert "--http-port" in said.err


def test_nothing_runs(impala: Impala, tmp_path: Path) -> None:
    for command in (["ps"], ["down"], ["jobs", "list"], ["batch", "list"], ["keys", "list"]):
        assert_one_sentence(impala(*command), 1, "No instance runs in", "impala up")


def test_ps_of_nothing_is_an_empty_list_and_a_failure(impala: Impala) -> None:
    said = impala("ps", "--json")
    assert said.code == 1
    assert json.loads(said.out) == []


def test_nobody_answers_at_the_url(impala: Impala) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    said = impala("jobs", "list", "--url", url)
    assert_one_sentence(said, 1, f"Nothing answers at {url}", "impala up", "--url")


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("localhost", "as http://localhost."),
        ("127.0.0.1:8080", "as http://127.0.0.1:8080."),
        ("grpc://localhost:7070", "as http://localhost:7070."),
        ("http://", "as http://127.0.0.1:8080."),
        ("http://localhost:eighty", "is no URL: Invalid port"),
    ],
)
def test_a_url_that_is_none(impala: Impala, requests: Path, url: str, part: str) -> None:
    for command in (["jobs", "list"], ["run", requests, "-o", requests.with_name("out.jsonl")]):
        assert_one_sentence(impala(*command, "--url", url), 2, repr(url), part)


@pytest.mark.parametrize("end", ["/", "/v1", "/v1/"])
def test_a_url_as_other_clients_have_it(impala: Impala, end: str) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    said = impala("jobs", "list", "--url", url + end)
    assert_one_sentence(said, 1, f"Nothing answers at {url}:")


def test_a_url_that_leads_to_grpc(impala: Impala, requests: Path) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        for command in (["jobs", "list"], ["files", "upload", requests]):
            said = impala(*command, "--url", url)
            assert_one_sentence(said, 1, url, "not a gRPC one", "impala ps")
    finally:
        server.stop(None).wait()


def test_the_version(impala: Impala) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = impala("--version")
    assert (said.code, said.out) == (0, f"impala {project['version']}\n")


def test_an_unreachable_etcd(impala: Impala) -> None:
    etcd = f"127.0.0.1:{free_port()}"
    said = impala("keys", "create", "--account", "a", "--etcd", etcd)
    assert_one_sentence(said, 1, f"etcd at {etcd} does not answer", "--etcd")


@pytest.mark.parametrize("account", ["bad name/!", "", "two\nlines"])
def test_a_name_that_no_account_can_have(impala: Impala, account: str) -> None:
    etcd = f"127.0.0.1:{free_port()}"
    said = impala("keys", "create", "--account", account, "--etcd", etcd)
    assert_one_sentence(said, 2, f"--account {account!r} cannot be")


def test_run_does_not_write_onto_a_folder(impala: Impala, requests: Path, tmp_path: Path) -> None:
    said = impala("run", requests, "-o", tmp_path, "--force")
    assert_one_sentence(said, 2, f"{tmp_path} is a folder", "--output")


def test_run_does_not_overwrite_answers(impala: Impala, requests: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    output.write_text("precious\n")
    said = impala("run", requests, "-o", output)
    assert_one_sentence(said, 2, f"{output} exists", "--force")
    assert output.read_text() == "precious\n"


def test_run_does_not_overwrite_failed_lines_either(
    impala: Impala, requests: Path, tmp_path: Path
) -> None:
    (tmp_path / "out.errors.jsonl").write_text("precious\n")
    said = impala("run", requests, "-o", tmp_path / "out.jsonl")
    assert_one_sentence(said, 2, "out.errors.jsonl exists")


def test_run_needs_its_input(impala: Impala, tmp_path: Path) -> None:
    said = impala("run", tmp_path / "none.jsonl", "-o", tmp_path / "out.jsonl")
    assert_one_sentence(said, 2, "none.jsonl cannot be read: No such file")


def test_run_needs_the_outputs_folder(impala: Impala, requests: Path, tmp_path: Path) -> None:
    said = impala("run", requests, "-o", tmp_path / "none" / "out.jsonl")
    assert_one_sentence(said, 2, "none does not exist")


def test_run_with_lines_for_another_model(impala: Impala, requests: Path, tmp_path: Path) -> None:
    said = impala("run", requests, "-o", tmp_path / "out.jsonl", "--model", "./mine")
    assert_one_sentence(
        said, 2, "Line 1 asks for the model 'smollm2-135m'", "--substitute-model", "'./mine'"
    )


def test_run_with_lines_for_two_models(impala: Impala, tmp_path: Path) -> None:
    path = tmp_path / "two.jsonl"
    path.write_text(f"{request()}\n\n{request('other')}\n")
    said = impala("run", path, "-o", tmp_path / "out.jsonl")
    assert_one_sentence(said, 2, "Line 3 asks for the model 'other'", "make two files")


def test_run_with_lines_that_name_no_model(impala: Impala, tmp_path: Path) -> None:
    path, output = tmp_path / "bare.jsonl", tmp_path / "out.jsonl"
    path.write_text('{"custom_id": "a", "body": {"messages": []}}\n')
    said = impala("run", path, "-o", output, "--model", "mine")
    assert_one_sentence(said, 2, "Line 1 names no model", "--substitute-model", "'mine'")
    assert_one_sentence(impala("run", path, "-o", output), 2, "--substitute-model and --model")


def test_run_on_a_url_takes_the_precision_that_is_served_there(
    impala: Impala, requests: Path, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    flags = ["--url", url, "--precision", "int8"]
    said = impala("run", requests, "-o", tmp_path / "out.jsonl", *flags)
    assert_one_sentence(said, 2, "--precision", url, "--url")


def test_run_that_is_to_substitute_a_model_must_name_it(
    impala: Impala, requests: Path, tmp_path: Path
) -> None:
    command = ["run", requests, "-o", tmp_path / "out.jsonl", "--substitute-model"]
    needs = "--substitute-model needs --model: "
    assert_one_sentence(impala(*command), 2, needs, "--model smollm2-135m", ".gguf", "hub id")
    url = f"http://127.0.0.1:{free_port()}"
    assert_one_sentence(impala(*command, "--url", url), 2, needs, f"{url}/v1/models")


@pytest.mark.parametrize("link", [None, Path.symlink_to, Path.hardlink_to])
def test_run_does_not_write_onto_its_input(
    impala: Impala, requests: Path, link: Callable[[Path, Path], None] | None
) -> None:
    output, before = requests, requests.read_text()
    if link is not None:
        output = requests.with_name("link.jsonl")
        link(output, requests)
    said = impala("run", requests, "-o", output, "--force")
    assert_one_sentence(said, 2, f"{output} is the input {requests}", "--output")
    assert requests.read_text() == before


def test_run_does_not_write_failed_lines_onto_its_input(impala: Impala, tmp_path: Path) -> None:
    path = tmp_path / "out.errors.jsonl"
    path.write_text(request())
    said = impala("run", path, "-o", tmp_path / "out.jsonl", "--force")
    assert_one_sentence(said, 2, f"{path} is the input")


def test_lines_with_a_whole_url(impala: Impala, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(request().replace('"/v1/', '"https://api.openai.com/v1/'))
    for command in (["run", path, "-o", tmp_path / "out.jsonl"], ["batch", "submit", path]):
        said = impala(*command)
        assert_one_sentence(said, 2, "Line 1 has the 'url' 'https://", "/v1/chat/completions")


def test_run_with_a_job_of_nothing_that_runs(
    impala: Impala, requests: Path, tmp_path: Path
) -> None:
    said = impala("run", requests, "-o", tmp_path / "out.jsonl", "--job", "job-1")
    assert_one_sentence(said, 2, "--job job-1", "--state")


def test_run_with_no_model_at_all(impala: Impala, tmp_path: Path) -> None:
    path = tmp_path / "bare.jsonl"
    path.write_text('{"custom_id": "a"}\n')
    said = impala("run", path, "-o", tmp_path / "out.jsonl")
    assert_one_sentence(said, 2, "--model")


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "holds no requests"),
        (b"\n \n", "holds no requests"),
        (b"Dear model,\nhello\n", "none of its lines is a JSON object"),
        (b"[1, 2]\n", "none of its lines is a JSON object"),
        (bytes(range(256)), "none of its lines is a JSON object"),
    ],
)
def test_a_file_that_is_no_batch(impala: Impala, tmp_path: Path, content: bytes, part: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(content)
    for command in (["run", path, "-o", tmp_path / "out.jsonl"], ["batch", "submit", path]):
        assert_one_sentence(impala(*command), 2, str(path), part, "examples/")


def test_run_needs_a_place_for_the_answers_before_it_starts_anything(
    impala: Impala, requests: Path
) -> None:
    said = impala("run", requests, "-o", "/proc/out.jsonl")
    assert_one_sentence(said, 1, "/proc/out.jsonl cannot be written")


def test_a_state_folder_that_cannot_be_made(
    impala: Impala, requests: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_one_sentence(impala("ps", "--state", requests), 1, "Not a directory", "--state")
    monkeypatch.setenv("XDG_STATE_HOME", str(requests))
    said = impala("run", requests, "-o", tmp_path / "out.jsonl", "--model", "smollm2-135m")
    assert_one_sentence(said, 1, f"{requests}/impala", "--state")


def test_what_the_machine_refuses_is_a_sentence_too(impala: Impala, tmp_path: Path) -> None:
    model, logs = tmp_path / "m", tmp_path / "s" / "logs"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (logs / "etcd.log.1" / "in the way").mkdir(parents=True)
    (logs / "etcd.log").touch()
    said = impala("up", "--model", model, "--http-port", "0", "--state", tmp_path / "s")
    assert said.code == 1
    last = said.err.splitlines()[-1]
    assert last == f"impala: {logs}/etcd.log: Is a directory."
    assert "Traceback" not in said.err


@pytest.mark.parametrize("etcd", ["https://127.0.0.1:2379", "localhost", "a:1,b"])
def test_an_etcd_that_is_no_endpoint(impala: Impala, etcd: str) -> None:
    said = impala("keys", "list", "--etcd", etcd)
    assert_one_sentence(said, 2, "--etcd has", "host:port")
