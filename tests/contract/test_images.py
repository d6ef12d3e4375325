"""Images and manifests agree with the services that they are made of.

What only a build can show (the images work, the manifests follow their schemas) is `make images`.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from libs.config import ConfigError, ServiceConfig, read_config
from libs.config.reader import env_name
from tests.contract.module_graph import ROOT, needs_of

SERVICES = ("router", "scheduler", "modelserver", "kvstore", "leap")
ALSO_RUN = {"modelserver": ("libs.models.prepare", "libs.text.convert")}
DEPLOY = ROOT / "examples" / "deploy"
BASE = DEPLOY / "kubernetes" / "base"
UNDER_TLS = DEPLOY / "kubernetes" / "tls"
AFTER_THE_DRAIN_S = 10
"""Last reports (3 s), the engine's end (5 s), calls that ignore their cancellation (2 s)."""


def normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def listed(service: str) -> dict[str, str]:
    """What the image installs, with the reason where one is given."""
    text = (ROOT / "services" / service / "requirements.in").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {normal(name.strip()): why.strip() for name, _, why in (x.partition("#") for x in lines)}


def modules_of(service: str) -> list[str]:
    return [f"services.{service}.main", "libs.rpc.probe", *ALSO_RUN.get(service, ())]


def config_of(service: str) -> type[ServiceConfig]:
    module = importlib.import_module(f"services.{service}.config")
    (found,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, ServiceConfig) and value != ServiceConfig
    )
    return found


def defaults_of(service: str) -> dict[str, Any]:
    """Settings by the names of their variables."""
    return {env_name(each): each.default for each in dataclasses.fields(config_of(service))}


def directives(service: str) -> dict[str, list[str]]:
    """The Containerfile's final stage, by directive."""
    text = (ROOT / "services" / service / "Containerfile").read_text().replace("\\\n", " ")
    final = text.rpartition("\nFROM ")[2]
    found: dict[str, list[str]] = {}
    for line in final.splitlines():
        word, _, rest = line.partition(" ")
        found.setdefault(word, []).append(rest)
    return found


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_installs_what_its_service_imports_and_no_more(service: str) -> None:
    needs, given, by_import = (
        needs_of(modules_of(service)),
        listed(service),
        packages_distributions(),
    )
    offers = {top: {normal(each) for each in by_import.get(top, ())} for top in needs.others}
    missing = {top: needs.others[top] for top, names in offers.items() if not names & set(given)}
    assert not missing, f"imported (where first), but not in {service}'s requirements.in"
    needless = {name for name, why in given.items() if not why} - set().union(*offers.values())
    assert not needless, f"in {service}'s requirements.in without a reason, and not imported"


@pytest.mark.parametrize("service", SERVICES)
def test_everything_installed_is_pinned(service: str) -> None:
    lock = (ROOT / "requirements.lock").read_text()
    pins = {normal(line.partition("==")[0]) for line in lock.splitlines() if "==" in line}
    assert set(listed(service)) - pins <= {"pip"}


@pytest.mark.parametrize("service", sorted(set(SERVICES) - {"modelserver"}))
def test_only_model_servers_carry_torch(service: str) -> None:
    assert not {"torch", "transformers"} & set(listed(service))


@pytest.mark.parametrize("service", SERVICES)
def test_every_module_that_runs_is_in_the_image(service: str) -> None:
    copied = (ROOT / "gen", ROOT / "libs", ROOT / "services" / service)
    for module, path in needs_of(modules_of(service)).ours.items():
        inside = path.relative_to(ROOT)
        assert module == "services" or any(path.is_relative_to(each) for each in copied), module
        # As .containerignore leaves out.
        assert "tests" not in inside.parts and not inside.is_relative_to("libs/testing"), module


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_listens_where_its_service_does_and_runs_as_nobody(service: str) -> None:
    found, defaults = directives(service), defaults_of(service)
    ports = [
        str(defaults[name]) for name in ("IMPALA_PORT", "IMPALA_HTTP_PORT") if name in defaults
    ]
    assert found["EXPOSE"] == [" ".join(ports)]
    assert f"IMPALA_PORT={ports[0]}" in found["ENV"][0].split()
    assert found["USER"] == ["10001:10001"]
    assert found["ENTRYPOINT"] == [f'["python", "-m", "services.{service}.main"]']
    assert found["HEALTHCHECK"][0].endswith('CMD ["python", "-m", "libs.rpc.probe"]')


def impala_variables(env: dict[str, Any]) -> set[str]:
    return {name for name in env if name.startswith("IMPALA_")} - {"IMPALA_CACHE"}


def image_env(service: str) -> dict[str, str]:
    words = " ".join(directives(service)["ENV"]).split()
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def accepted(service: str, env: dict[str, Any]) -> ServiceConfig:
    """What the image makes of these variables; what only a pod knows (None) is left out. Raises
    ConfigError, as its start would."""
    known = {name: str(value) for name, value in env.items() if value is not None}
    told = image_env(service) | known
    config = read_config(config_of(service), [], env=told)
    assert config.host == "0.0.0.0"
    return config


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    """A folder as `--tls` wants it."""
    for name in ("tls.crt", "tls.key", "ca.crt"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.fixture(scope="module")
def compose() -> Any:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


@pytest.fixture(scope="module")
def compose_tls() -> Any:
    return yaml.safe_load((DEPLOY / "compose.tls.yaml").read_text())


@pytest.mark.parametrize("service", SERVICES)
def test_compose_sets_what_the_service_knows(compose: Any, service: str) -> None:
    told = compose["services"][service]
    # One block is for all; a scheduler's or leap's settings are a part of every service's.
    assert impala_variables(told["environment"]) <= set(defaults_of(service))
    drain = float(told["environment"]["IMPALA_DRAIN_S"])
    assert float(told["stop_grace_period"].removesuffix("s")) >= drain + AFTER_THE_DRAIN_S
    assert told["build"]["dockerfile"] == f"services/{service}/Containerfile"


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_of_compose_is_let_to_serve_others_because_it_is_told_so(
    compose: Any, service: str
) -> None:
    told = dict(compose["services"][service]["environment"])
    assert accepted(service, told).insecure
    del told["IMPALA_INSECURE"]
    with pytest.raises(ConfigError, match="--insecure"):
        accepted(service, told)


@pytest.mark.parametrize("service", SERVICES)
def test_under_tls_it_needs_not_be_told_so(
    compose: Any, compose_tls: Any, mounted: Path, service: str
) -> None:
    over = compose_tls["services"][service]
    (volume,) = over["volumes"]
    assert volume.endswith(f":{over['environment']['IMPALA_TLS']}:ro")
    told = {**compose["services"][service]["environment"], **over["environment"]}
    config = accepted(service, {**told, "IMPALA_TLS": mounted})
    assert not config.insecure
    assert config.tls_ca == config.etcd_ca == mounted / "ca.crt"
    assert config.tls_name == "impala.internal"


def test_compose_publishes_on_loopback_only(compose: Any) -> None:
    published = [port for told in compose["services"].values() for port in told.get("ports", ())]
    assert published and all(port.startswith("127.0.0.1:") for port in published)


def manifests() -> Iterator[dict[str, Any]]:
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    for name in kustomization["resources"]:
        yield from yaml.safe_load_all((BASE / name).read_text())


def settings(folder: Path = BASE) -> dict[str, dict[str, str]]:
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    return {
        each["name"]: dict(literal.split("=", 1) for literal in each["literals"])
        for each in kustomization["configMapGenerator"]
    }


def named(kinds: set[str], name: str) -> dict[str, Any]:
    (found,) = (x for x in manifests() if x["kind"] in kinds and x["metadata"]["name"] == name)
    return found


def test_every_manifest_is_applied() -> None:
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    patches = [each["path"] for each in kustomization["patches"]]
    files = {path.name for path in BASE.glob("*.yaml")} - {"kustomization.yaml"}
    assert files == {*kustomization["resources"], *patches}


@pytest.mark.parametrize("service", SERVICES)
class TestKubernetes:
    def test_a_pod_is_given_time_for_its_drain(self, service: str) -> None:
        pod = named({"Deployment", "StatefulSet"}, service)["spec"]["template"]["spec"]
        hooks = pod["containers"][0].get("lifecycle", {})
        before = hooks.get("preStop", {}).get("sleep", {}).get("seconds", 0)
        drain = float(settings()["impala"]["IMPALA_DRAIN_S"])
        assert pod["terminationGracePeriodSeconds"] >= before + drain + AFTER_THE_DRAIN_S

    def test_a_pod_is_probed_and_advertised_where_its_service_listens(self, service: str) -> None:
        pod = named({"Deployment", "StatefulSet"}, service)["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        port = defaults_of(service)["IMPALA_PORT"]
        probes = [container[f"{kind}Probe"]["grpc"]["port"] for kind in ("startup", "readiness")]
        assert {*probes, container["livenessProbe"]["grpc"]["port"]} == {port}
        env = {each["name"]: each.get("value") for each in container["env"]}
        assert env["IMPALA_ADVERTISE"] == f"$(POD_IP):{port}"
        names = {each["name"]: each["containerPort"] for each in container["ports"]}
        assert names["grpc"] == port
        assert names["metrics"] == int(settings()["impala"]["IMPALA_METRICS_PORT"])

    def test_a_pod_is_told_what_its_service_knows(self, service: str) -> None:
        pod = named({"Deployment", "StatefulSet"}, service)["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        told = {each["name"]: each.get("value") for each in container["env"]}
        for source in container["envFrom"]:
            told |= settings()[source["configMapRef"]["name"]]
        assert impala_variables(told) <= set(defaults_of(service))
        assert {"IMPALA_ETCD", "IMPALA_MEMBER"} <= set(told)

    def test_a_pod_may_serve_others_because_it_is_told_so_or_under_tls(
        self, service: str, mounted: Path
    ) -> None:
        pod = named({"Deployment", "StatefulSet"}, service)["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        told = {each["name"]: each.get("value") for each in container["env"]}
        for source in container["envFrom"]:
            told |= settings()[source["configMapRef"]["name"]]
        assert accepted(service, told).insecure
        config = accepted(service, told | settings(UNDER_TLS)["impala"] | {"IMPALA_TLS": mounted})
        assert not config.insecure
        assert config.tls_ca == config.etcd_ca == mounted / "ca.crt"

    def test_a_service_leads_to_ports_that_its_pods_have(self, service: str) -> None:
        told = named({"Service"}, service)["spec"]
        pod = named({"Deployment", "StatefulSet"}, service)["spec"]["template"]
        ports = {each["name"] for each in pod["spec"]["containers"][0]["ports"]}
        assert {each["targetPort"] for each in told["ports"]} <= ports
        assert told["selector"].items() <= pod["metadata"]["labels"].items()

    def test_a_pods_image_is_the_services_and_its_needs_are_bounded(self, service: str) -> None:
        pod = named({"Deployment", "StatefulSet"}, service)["spec"]["template"]["spec"]
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            assert container["image"] == f"impala-{service}"
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])
            assert "memory" in container["resources"]["limits"]


def test_the_secret_is_mounted_where_every_pod_looks_for_it() -> None:
    folder = settings(UNDER_TLS)["impala"]["IMPALA_TLS"]
    member, etcd = (
        yaml.safe_load((UNDER_TLS / f"{name}.yaml").read_text()) for name in ("member", "etcd")
    )
    (mount,) = (each["value"] for each in member if each["path"].endswith("/volumeMounts/-"))
    (container,) = etcd["spec"]["template"]["spec"]["containers"]
    files = {each["value"] for each in container["env"] if each["name"].endswith("_FILE")}
    assert [mount] == container["volumeMounts"]
    assert mount["mountPath"] == folder
    assert files == {f"{folder}/{name}" for name in ("tls.crt", "tls.key", "ca.crt")}


def test_no_file_names_an_index_or_a_registry() -> None:
    files = [*DEPLOY.rglob("*"), *ROOT.glob("services/*/Containerfile")]
    text = "\n".join(path.read_text() for path in files if path.is_file())
    hosts = set(re.findall(r"https?://([\w.$-]+)", text))
    assert hosts <= {"127.0.0.1", "0.0.0.0", "etcd", "router", "$"}, hosts


def test_the_ignore_file_leaves_the_tests_out() -> None:
    lines = Path(ROOT / ".containerignore").read_text().splitlines()
    assert lines[1] == "*"
    assert {"**/tests", "libs/testing"} <= set(lines)
    assert {f"!services/{service}" for service in SERVICES} <= set(lines)
