"""pip's settings of a machine as those of a build: one file, and what it names mounted."""

from __future__ import annotations

import configparser
import subprocess
import sys
from pathlib import Path

from scripts.images.pip_settings import parse_settings, read_settings


def values(conf: str) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(conf)
    return dict(parser["global"])


def test_variables_win_over_what_files_say_and_install_over_global() -> None:
    listed = (
        ":env:.index-url='https://c.example/simple'\n"
        "global.index-url='https://a.example/simple'\n"
        "global.timeout='10'\n"
        "install.timeout='20'\n"
    )
    assert values(parse_settings(listed).conf) == {
        "index-url": "https://c.example/simple",
        "timeout": "20",
    }


def test_a_list_of_several_lines_becomes_one() -> None:
    listed = "global.extra-index-url='\\nhttps://a.example/s\\nhttps://b.example/s'\n"
    assert values(parse_settings(listed).conf) == {
        "extra-index-url": "https://a.example/s https://b.example/s"
    }


def test_what_lies_on_this_machine_is_mounted(tmp_path: Path) -> None:
    wheels, index, cert = tmp_path / "wheels", tmp_path / "mirror" / "simple", tmp_path / "ca.pem"
    wheels.mkdir()
    index.mkdir(parents=True)
    cert.touch()
    listed = (
        f"global.find-links='{wheels} {tmp_path}/gone'\n"
        f"global.index-url='file://{index}'\n"
        f":env:.cert='{cert}'\n"
    )
    # An index's pages link to files beside it, so the folder above comes along.
    assert parse_settings(listed).mounts == (cert, index.parent, wheels)


def test_settings_of_other_commands_and_of_this_machines_cache_stay_here() -> None:
    listed = "download.dest='/tmp'\nglobal.cache-dir='/tmp'\nglobal.require-virtualenv='true'\n"
    settings = parse_settings(listed)
    assert values(settings.conf) == {}
    assert settings.mounts == ()


def test_a_pip_that_reads_the_file_has_the_settings_of_the_one_that_was_asked(
    tmp_path: Path,
) -> None:
    settings = read_settings(Path(sys.executable))
    (tmp_path / "pip.conf").write_text(settings.conf)
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        env={"PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    told = values(parse_settings(listed.stdout).conf)
    assert values(settings.conf).items() <= told.items()
