"""Configuration: flag beats environment beats default; a mistake is one sentence, exit code 2."""

import pathlib
from dataclasses import FrozenInstanceError, dataclass
from typing import ClassVar

import pytest

from libs.config import (
    ConfigError,
    ServiceConfig,
    check_exposure,
    is_loopback,
    parse_bytes,
    parse_config,
    port_setting,
    read_config,
    setting,
)


@dataclass(frozen=True, kw_only=True)
class Kitchen(ServiceConfig):
    """A service for the tests."""

    port: int = port_setting(7099)
    http_port: int = port_setting(8080)
    memory_bytes: int = setting(1 << 20, "Bytes held.", parse=parse_bytes, minimum=1)
    rate: float = setting(0.5, "Share, 0 to 1.", minimum=0, maximum=1)
    precision: str = setting("auto", "Weights.", choices=("auto", "float32"))
    verbose: bool = setting(False, "Say more.")
    home: pathlib.Path | None = setting(None, "Folder.")
    sizes: tuple[int, ...] = setting((), "Sizes.")


@dataclass(frozen=True, kw_only=True)
class FrontDoor(ServiceConfig):
    """A service with clients of its own, who show keys."""

    members_only: ClassVar[bool] = False


@dataclass(frozen=True)
class Needy:
    model: str = setting(help="The model.")


def test_defaults_stand_when_nothing_is_given() -> None:
    config = read_config(Kitchen, [], env={})
    assert (config.http_port, config.memory_bytes, config.rate) == (8080, 1 << 20, 0.5)
    assert (config.port, config.host, config.etcd) == (7099, "127.0.0.1", ("127.0.0.1:2379",))


def test_a_flag_beats_the_environment_which_beats_the_default() -> None:
    env = {"IMPALA_HTTP_PORT": "1", "IMPALA_RATE": "0.25"}
    config = read_config(Kitchen, ["--http-port", "2"], env=env)
    assert (config.http_port, config.rate) == (2, 0.25)


def test_every_type_is_read_from_its_text() -> None:
    argv = [
        "--verbose",
        "--home",
        "/var/x",
        "--sizes",
        "1,2,3",
        "--memory-bytes",
        "2MiB",
        "--precision=float32",
    ]
    config = read_config(Kitchen, argv, env={})
    assert config.verbose is True
    assert config.home == pathlib.Path("/var/x")
    assert config.sizes == (1, 2, 3)
    assert config.memory_bytes == 2 << 20
    assert config.precision == "float32"


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("0", False), ("OFF", False), ("yes", True)]
)
def test_a_switch_can_be_set_both_ways(text: str, value: bool) -> None:
    assert read_config(Kitchen, ["--verbose", text], env={}).verbose is value
    assert read_config(Kitchen, [], env={"IMPALA_VERBOSE": text}).verbose is value


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--http-prot", "1"], "There is no flag --http-prot, did you mean --http-port?"),
        (["--memory", "1"], "There is no flag --memory"),  # no silent abbreviations
        (["stray"], "There is no argument stray"),
        (["--http-port"], "Argument --http-port: expected one argument"),
        (["--http-port", "x"], "--http-port is 'x': not a whole number."),
        (["--http-port", "70000"], "--http-port is 70000, but must be at most 65535."),
        (["--rate", "-0.1"], "--rate is -0.1, but must be at least 0."),
        (["--rate", "nan"], "--rate is 'nan': not a finite number."),
        (["--precision", "int3"], "--precision is 'int3', but must be one of auto, float32."),
        (["--memory-bytes", "lots"], "--memory-bytes is 'lots': not a size"),
        (["--verbose=maybe"], "--verbose is 'maybe': not true or false."),
        (["--etcd", "localhost"], "--etcd has 'localhost', but an endpoint is host:port."),
        (["--tls-cert", "/nowhere"], "--tls-cert and --tls-key go together"),
        (["--etcd-key", "/nowhere"], "--etcd-cert and --etcd-key go together"),
        (["--etcd-user", "u"], "--etcd-user and --etcd-password-file go together"),
        (
            ["--etcd-user", "u", "--etcd-password-file", "/nowhere"],
            "The password file /nowhere does not exist.",
        ),
        (["--etcd-ca", "/nowhere"], "The file /nowhere of --etcd-ca does not exist."),
        (["--tls-ca", "/nowhere"], "The file /nowhere of --tls-ca does not exist."),
        (["--tls", "/nowhere"], "--tls names /nowhere, which is no folder."),
        (["--tls", "/"], "The folder / of --tls has no file tls.crt."),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse_config(Kitchen, argv, prog="kitchen", env={})
    assert exit_.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("kitchen: ") and said.err.count("\n") == 1
    assert sentence in said.err


def test_a_wrong_variable_is_named_as_the_variable() -> None:
    with pytest.raises(ConfigError, match="IMPALA_HTTP_PORT is 'x': not a whole number"):
        read_config(Kitchen, [], env={"IMPALA_HTTP_PORT": "x"})


def test_a_required_setting_says_both_ways_to_give_it() -> None:
    with pytest.raises(ConfigError, match=r"--model is required \(or set IMPALA_MODEL\)"):
        read_config(Needy, [], env={})
    assert read_config(Needy, [], env={"IMPALA_MODEL": "m"}).model == "m"


def test_help_shows_each_setting_with_default_and_variable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse_config(Kitchen, ["--help"], prog="kitchen", env={})
    assert exit_.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "--http-port INT" in said
    assert "Bytes held. [default: 1048576; IMPALA_MEMORY_BYTES]" in said


def test_a_configuration_cannot_be_changed_later() -> None:
    config = read_config(Kitchen, [], env={})
    with pytest.raises(FrozenInstanceError):
        config.http_port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "value"),
    [("17", 17), ("1k", 1024), ("1KB", 1000), ("1.5GiB", 3 << 29), ("2 TiB", 2 << 40), ("8b", 8)],
)
def test_sizes_are_binary_unless_written_decimal(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1x", "1e9", "1 2"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_bytes(text)


def test_one_folder_is_the_whole_of_tls_also_for_etcd(tmp_path: pathlib.Path) -> None:
    for name in ("tls.crt", "tls.key", "ca.crt", "other.pem"):
        (tmp_path / name).touch()

    def read(*flags: str) -> Kitchen:
        return read_config(Kitchen, ["--tls", str(tmp_path), *flags], env={})

    cert, key, ca, other = (
        tmp_path / name for name in ("tls.crt", "tls.key", "ca.crt", "other.pem")
    )
    config = read()
    assert (config.tls_cert, config.tls_key, config.tls_ca) == (cert, key, ca)
    assert (config.etcd_cert, config.etcd_key, config.etcd_ca) == (cert, key, ca)
    plain = read("--etcd-plain", "--tls-ca", str(other))
    assert (plain.tls_cert, plain.tls_key, plain.tls_ca) == (cert, key, other)
    assert (plain.etcd_cert, plain.etcd_key, plain.etcd_ca) == (None, None, None)
    own = read("--etcd-ca", str(other))
    assert (own.etcd_cert, own.etcd_key, own.etcd_ca) == (None, None, other)


class TestExposure:
    @pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
    def test_loopback_needs_no_protection(self, host: str) -> None:
        assert is_loopback(host)
        check_exposure(host, protected=False)
        read_config(Kitchen, ["--host", host], env={})

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
    def test_anything_else_is_refused_without_protection(self, host: str) -> None:
        with pytest.raises(ConfigError, match=r"give --tls, or listen on 127\.0\.0\.1"):
            check_exposure(host, protected=False)
        check_exposure(host, protected=True)
        with pytest.raises(ConfigError, match=r"--host.*give --tls, or --insecure where"):
            read_config(Kitchen, ["--host", host], env={})
        read_config(Kitchen, ["--host", host, "--insecure"], env={})

    def test_a_certificate_alone_protects_who_asks_callers_for_keys(
        self, tmp_path: pathlib.Path
    ) -> None:
        cert, key, ca = (tmp_path / name for name in ("tls.crt", "tls.key", "ca.crt"))
        for path in (cert, key, ca):
            path.touch()
        server = ["--host", "0.0.0.0", "--tls-cert", str(cert), "--tls-key", str(key)]
        read_config(FrontDoor, server, env={})
        with pytest.raises(ConfigError, match="--tls-ca, for members' certificates, or --insecure"):
            read_config(Kitchen, server, env={})
        read_config(Kitchen, [*server, "--tls-ca", str(ca)], env={})
        read_config(Kitchen, ["--host", "0.0.0.0", "--tls", str(tmp_path)], env={})
