"""What may be typed after --model."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.modelserver.herd.models.errors import ModelNotFound
from services.modelserver.herd.models.resolve import resolve_model


def refuse(hub_id: str) -> Path:
    raise AssertionError(f"nothing should ask the hub for {hub_id}")


def test_an_alias_comes_first(tmp_path: Path) -> None:
    found = resolve_model("demo", alias={"demo": tmp_path / "x.gguf"}.get, download=refuse)
    assert found == tmp_path / "x.gguf"


def test_a_folder_and_a_gguf_file_are_themselves(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    assert resolve_model(str(tmp_path), download=refuse) == tmp_path
    assert resolve_model(str(tmp_path / "m.gguf"), download=refuse) == tmp_path / "m.gguf"


def test_a_hub_id_is_downloaded(tmp_path: Path) -> None:
    asked: list[str] = []

    def download(hub_id: str) -> Path:
        asked.append(hub_id)
        return tmp_path

    assert resolve_model("org/model-1.5", download=download) == tmp_path
    assert asked == ["org/model-1.5"]


@pytest.mark.parametrize("name", ["nosuch", "/no/such/folder", "a/b/c", "../up/x"])
def test_anything_else_says_what_would_do(name: str) -> None:
    with pytest.raises(ModelNotFound, match="safetensors folder"):
        resolve_model(name, download=refuse)


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.touch()
    with pytest.raises(ModelNotFound, match=r"weights\.bin"):
        resolve_model(str(path), download=refuse)
