"""What is prepared lies where a model server and a router will look for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from libs.demo.model import DEMO, ensure_demo_model, model_path
from libs.models import ModelNotFound
from libs.models.prepare import prepare
from libs.text.model_files import find_model_files


@pytest.mark.slow
def test_the_demo_models_tokenizer_needs_no_conversion_afterwards(tmp_path: Path) -> None:
    path = model_path(tmp_path, DEMO)
    path.parent.mkdir(parents=True)
    path.symlink_to(ensure_demo_model())
    assert prepare(DEMO.alias, tmp_path) == path
    converted = list((tmp_path / "tokenizers").rglob("tokenizer.json"))
    files = find_model_files(path, tmp_path / "tokenizers")
    assert [files.tokenizer_json] == converted
    assert files.chat_template


def test_a_folder_with_a_tokenizer_is_ready_as_it_is(tmp_path: Path) -> None:
    folder, cache = tmp_path / "model", tmp_path / "cache"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    assert prepare(str(folder), cache) == folder
    assert not cache.exists()


def test_an_unknown_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        prepare("no-such-model", tmp_path)


def test_the_program_ends_with_one_sentence_and_exit_code_1() -> None:
    command = [sys.executable, "-m", "libs.models.prepare", "no-such-model"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr.startswith("prepare: There is no model 'no-such-model'")
    assert ran.stderr.count("\n") == 1
