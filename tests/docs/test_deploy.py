"""The files in `docs/deploy`: they are valid, their commands and flags exist, and probes ask what a worker answers."""

from __future__ import annotations

import configparser
import re
import shlex
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from retinue.app.settings_file import load_settings
from retinue.dispatch.processes import STOP_SECONDS
from tests.docs.pages import DOCS
from tests.docs.test_docs import command_line, flags_in, flags_of

DEPLOY = DOCS / "deploy"
needs_worker = pytest.mark.skipif(
    "worker" not in getattr(command_line(), "commands", {}), reason="this version has no command worker"
)
ENDPOINTS = ("/healthz", "/readyz", "/metrics")
STOPS_WITHIN = 10
"""Seconds in which a worker hands its runs over."""

INLINE_SECRET = re.compile(r"://[^:/@\s]+:(?!PASSWORD@)[^@\s]+@|sk-[A-Za-z0-9]{8}")


def load(name: str) -> list[dict[str, Any]]:
    return [cast("dict[str, Any]", each) for each in yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8"))]


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment] # names of systemd have capitals
    parser.read(DEPLOY / "retinue-worker.service", encoding="utf-8")
    return parser


def commands(values: object) -> Iterator[list[str]]:
    """Lists of words that begin with `retinue`, anywhere in a document."""
    match values:
        case list() if values and cast("list[object]", values)[0] == "retinue":
            yield [str(word) for word in cast("list[object]", values)]
        case list():
            for value in cast("list[object]", values):
                yield from commands(value)
        case dict():
            for value in cast("dict[str, object]", values).values():
                yield from commands(value)
        case _:
            pass


def all_commands() -> dict[str, list[list[str]]]:
    program, *words = shlex.split(unit()["Service"]["ExecStart"])
    return {
        "compose.yaml": list(commands(load("compose.yaml"))),
        "kubernetes.yaml": list(commands(load("kubernetes.yaml"))),
        "retinue-worker.service": [[Path(program).name, *words]],
    }


@needs_worker
@pytest.mark.parametrize("name", ["compose.yaml", "kubernetes.yaml", "retinue-worker.service"])
def test_every_command_and_flag_of_a_deployment_exists(name: str) -> None:
    found = all_commands()[name]

    assert any(words[:2] == ["retinue", "worker"] for words in found)
    for words in found:
        assert set(flags_in(words)) <= flags_of(words), words


@pytest.mark.parametrize("file", sorted(DEPLOY.iterdir()), ids=lambda file: file.name)
def test_no_secret_is_written_in_a_deployment(file: Path) -> None:
    assert INLINE_SECRET.findall(file.read_text(encoding="utf-8")) == []


@needs_worker
def test_the_settings_of_a_deployment_are_valid(tmp_path: Path) -> None:
    (config_map,) = (each for each in load("kubernetes.yaml") if each["kind"] == "ConfigMap")
    copy = tmp_path / "retinue.toml"
    copy.write_text(config_map["data"]["retinue.toml"])

    assert load_settings(str(copy)).warnings == load_settings(str(DEPLOY / "retinue.toml")).warnings == ()


def test_the_image_has_the_queue_of_workers() -> None:
    (installs,) = re.findall(r'pip install .*"/src\[(.*)\]"', (DEPLOY / "Dockerfile").read_text(encoding="utf-8"))
    extras = installs.split(",")
    needed = [requirement for requirement in requires("retinue") or () if "procrastinate" in requirement]

    assert any(f"extra == '{extra}'" in requirement.replace('"', "'") for extra in extras for requirement in needed)


def health_port(words: list[str]) -> str:
    return words[words.index("--health") + 1].rpartition(":")[2]


def test_compose_waits_for_the_database_and_the_migration_and_asks_the_worker() -> None:
    (document,) = load("compose.yaml")
    services = document["services"]
    worker = services["worker"]

    assert set(services) == {"database", "migrate", "worker"}
    assert services["migrate"]["depends_on"] == {"database": {"condition": "service_healthy"}}
    assert worker["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
    probe = worker["healthcheck"]["test"][-1]
    assert f"127.0.0.1:{health_port(worker['command'])}/healthz" in probe
    compile(probe, "probe", "exec")
    assert int(worker["stop_grace_period"].removesuffix("s")) > STOPS_WITHIN
    assert services["migrate"]["environment"]["RETINUE_STORE"].startswith("postgresql://")
    for build in (services["migrate"]["build"], worker["build"]):
        assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    for volume in worker["volumes"]:
        assert (DEPLOY / volume.split(":")[0]).is_file()


def test_the_unit_lets_a_worker_stop_and_starts_it_again() -> None:
    service = unit()["Service"]

    assert unit().sections() == ["Unit", "Service", "Install"]
    assert (service["KillMode"], service["Restart"]) == ("mixed", "always")
    assert int(service["TimeoutStopSec"]) > max(STOPS_WITHIN, STOP_SECONDS)
    assert service["EnvironmentFile"].startswith("/etc/")
    assert "--health" in service["ExecStart"]


def test_the_manifest_is_whole_and_its_probes_ask_what_a_worker_answers() -> None:
    documents = load("kubernetes.yaml")
    by_kind = {each["kind"]: each for each in documents}
    deployment = by_kind["Deployment"]
    pod = deployment["spec"]["template"]
    (worker,) = pod["spec"]["containers"]
    ports = {port["name"]: str(port["containerPort"]) for port in worker["ports"]}
    probes = {name: worker[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")}

    assert [each["kind"] for each in documents] == ["ConfigMap", "Job", "Deployment"]
    assert all(each["apiVersion"] and each["metadata"]["name"] for each in documents)
    assert deployment["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "livenessProbe": "/healthz",
        "readinessProbe": "/readyz",
    }
    assert {ports[probe["port"]] for probe in probes.values()} == {health_port(worker["command"])}
    annotations = pod["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == health_port(worker["command"])
    assert annotations["prometheus.io/path"] in ENDPOINTS
    assert pod["spec"]["terminationGracePeriodSeconds"] > STOPS_WITHIN
    mounted = {mount["name"]: mount["mountPath"] for mount in worker["volumeMounts"]}
    assert set(mounted) == {volume["name"] for volume in pod["spec"]["volumes"]}
    assert worker["command"][worker["command"].index("--config") + 1].startswith(mounted["settings"])


def test_only_the_migration_has_the_role_that_owns_the_schema() -> None:
    urls = {
        each["kind"]: variable["valueFrom"]["secretKeyRef"]["key"]
        for each in load("kubernetes.yaml")
        if each["kind"] != "ConfigMap"
        for variable in each["spec"]["template"]["spec"]["containers"][0]["env"]
        if variable["name"] == "RETINUE_STORE"
    }

    assert urls == {"Job": "owner-url", "Deployment": "worker-url"}
