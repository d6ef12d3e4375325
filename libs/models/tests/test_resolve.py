"""Names of models: the alias, paths, hub ids, and one clear sentence for all others."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from libs.demo.model import DEMO, model_path
from libs.models import ModelNotFound, resolve_model
from libs.models.resolve import download_from_hub


def refuse(hub_id: str, cache_dir: Path) -> Path:
    raise ModelNotFound(f"asked the hub for {hub_id}")


def test_a_folder_with_a_config_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert resolve_model(str(folder), tmp_path) == folder


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no config\.json"):
        resolve_model(str(tmp_path), tmp_path)


def test_a_gguf_file_is_taken_and_another_file_refused(tmp_path: Path) -> None:
    gguf, other = tmp_path / "m.gguf", tmp_path / "m.bin"
    gguf.touch()
    other.touch()
    assert resolve_model(str(gguf), tmp_path) == gguf
    with pytest.raises(ModelNotFound, match=r"\.gguf"):
        resolve_model(str(other), tmp_path)


def test_the_alias_leads_to_the_cached_demo_model(tmp_path: Path) -> None:
    path = model_path(tmp_path, DEMO)
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(DEMO.size)
    assert resolve_model(DEMO.alias, tmp_path) == path


def test_a_hub_id_goes_to_the_hub_and_says_so(tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.raises(ModelNotFound, match="asked the hub for org/name"):
        resolve_model("org/name", tmp_path, told.append, download=refuse)
    assert told == ["fetching org/name from the model hub"]


@pytest.mark.parametrize("name", ["no-such-model", "a/b/c", "/nowhere/at/all", ""])
def test_another_name_says_what_would_have_been_accepted(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        resolve_model(name, tmp_path, download=refuse)


@contextmanager
def hub(status: int, error_code: str) -> Iterator[str]:
    """The URL of a hub that answers everything with this error."""

    class Refusal(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("x-error-code", error_code)
            self.send_header("content-length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Nothing on stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusal) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (401, "RepoNotFound", "no model org/name, or it is private: .*HF_TOKEN"),
        (404, "RepoNotFound", "no model org/name, or it is private: .*HF_TOKEN"),
        (403, "GatedRepo", "org/name is gated: .*HF_TOKEN"),
        (500, "", r"could not be fetched from the hub \(HfHubHTTPError\)"),
    ],
)
def test_what_the_hub_refuses_is_told_apart(
    status: int, code: str, said: str, tmp_path: Path
) -> None:
    with hub(status, code) as url, pytest.raises(ModelNotFound, match=said):
        download_from_hub("org/name", tmp_path, endpoint=url)


def test_a_hub_that_is_not_there_is_no_fault_of_the_name(tmp_path: Path) -> None:
    with hub(500, "") as gone:
        pass
    with pytest.raises(ModelNotFound, match=r"hub cannot be reached from here .*local folder"):
        download_from_hub("org/name", tmp_path, endpoint=gone)
