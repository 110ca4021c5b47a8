"""The manifests are valid, and say what the product does: names, paths, ports, and times that add up."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from compose_spec import PyCompose
from typer.main import get_command

from coldstart.cli.main import app
from coldstart.config import PREFIX, Settings
from coldstart.healthchecks import Asked, HealthChecks
from coldstart.session import ANSWER_SECONDS, CLOSE_SECONDS

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
FILES = sorted((DEPLOY / "kubernetes").rglob("*.yaml"))
OLDEST, NEWEST = "1.29", "1.37"
REQUEST_SECONDS = 30
"""What the example gives requests in flight."""
STORE_SECONDS = 8
"""Calls to a store that stands still: 2 s each, four at most."""

Object = Mapping[str, Any]


def objects(file: Path) -> list[Object]:
    return list(yaml.safe_load_all(file.read_text()))


def workloads() -> Iterator[Object]:
    for file in FILES:
        yield from (each for each in objects(file) if each["kind"] == "Deployment")


def container(deployment: Object) -> Object:
    (only,) = deployment["spec"]["template"]["spec"]["containers"]
    found: Object = only
    return found


WORKERS = [each for each in workloads() if each["metadata"]["name"] == "worker"]
(EXPORTER,) = [each for each in workloads() if each["metadata"]["name"] == "exporter"]
PLAIN, GPU = sorted(WORKERS, key=lambda each: "nvidia" in str(each))
_TEXT = (DEPLOY / "compose.yaml").read_text()
COMPOSE = yaml.safe_load(re.sub(r"\$\{(\w+):\?[^}]*\}", "/models/model", _TEXT))


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(DEPLOY)))
def test_kubernetes_takes_it(file: Path, version: str) -> None:
    for each in objects(file):
        kubernetes_validate.validate(each, version, strict=True)


def test_the_validator_refuses_what_is_misspelt() -> None:
    wrong = {**PLAIN, "spec": {**PLAIN["spec"], "replica": 4}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, NEWEST, strict=True)


def test_everything_selects_pods_that_there_are() -> None:
    pods = [each["spec"]["template"]["metadata"]["labels"] for each in workloads()]
    for each in (each for file in FILES for each in objects(file)):
        match each:
            case {"kind": "Service", "spec": {"selector": chosen}}:
                assert chosen in pods
            case {"kind": "Deployment" | "PodDisruptionBudget", "spec": {"selector": {"matchLabels": chosen}}}:
                assert chosen in pods
            case {"kind": "NetworkPolicy", "spec": {"podSelector": {"matchLabels": chosen}, "ingress": rules}}:
                assert chosen in pods
                sources = [source for rule in rules for source in rule.get("from", ())]
                assert all(source["podSelector"]["matchLabels"] in pods for source in sources)
            case {"kind": kind}:
                assert kind == "PersistentVolumeClaim"


@pytest.mark.parametrize("worker", WORKERS, ids=["plain", "gpu"])
def test_probes_ask_what_is_answered(worker: Object) -> None:
    checks, asked = HealthChecks(drain="loopback"), container(worker)
    ports = {port["name"]: port["containerPort"] for port in asked["ports"]}
    paths = {name: asked[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}
    for probe in paths.values():
        answer = checks.answer(Asked("GET", probe["path"]))
        assert answer is not None
        assert answer.status in (200, 503)
        assert probe["port"] in ports
    assert paths["liveness"]["path"] == "/healthz"
    assert paths["startup"]["path"] == paths["readiness"]["path"] == "/readyz"
    hook = asked["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert f"http://127.0.0.1:{ports['http']}/drain" in hook
    assert checks.answer(Asked("POST", "/drain", "127.0.0.1")) is None
    assert str(ports["http"]) in asked["args"]


@pytest.mark.parametrize("worker", WORKERS, ids=["plain", "gpu"])
def test_times_add_up(worker: Object) -> None:
    """A pod is given as long as the slowest way to SERVE takes, and as long as the longest way out."""
    settings, pod = Settings(), worker["spec"]["template"]["spec"]
    startup = container(worker)["startupProbe"]
    given = startup["periodSeconds"] * startup["failureThreshold"]
    build, storage = 60, 16e9 / 0.1e9
    assert given >= build + settings.follow + settings.patience + STORE_SECONDS + storage
    assert worker["spec"]["progressDeadlineSeconds"] > given
    hook = settings.drain + 5
    assert pod["terminationGracePeriodSeconds"] >= hook + REQUEST_SECONDS + 3 * CLOSE_SECONDS + ANSWER_SECONDS
    assert worker["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert worker["spec"]["minReadySeconds"] >= 1, "balancers find the new one before an old one is told to end"


def test_times_of_the_compose_file_are_the_same() -> None:
    startup = container(PLAIN)["startupProbe"]
    for name in ("worker-1", "worker-2"):
        worker = COMPOSE["services"][name]
        assert worker["healthcheck"]["start_period"] == f"{startup['periodSeconds'] * startup['failureThreshold']}s"
        grace = PLAIN["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert worker["stop_grace_period"] == f"{grace}s"


def test_every_setting_is_one_of_ours() -> None:
    names = [variable["name"] for each in (*WORKERS, EXPORTER) for variable in container(each)["env"]]
    names += [name for service in COMPOSE["services"].values() for name in service.get("environment", ())]
    ours = [name for name in names if name.startswith(PREFIX)]
    assert len(ours) > 4
    assert {name.removeprefix(PREFIX).lower() for name in ours} <= set(Settings.__struct_fields__)


def test_the_exporter_is_a_command_there_is_and_is_asked_where_it_answers() -> None:
    asked = container(EXPORTER)
    program, command, *words = asked["command"]
    assert program == "coldstart"
    exporter = get_command(app).commands[command]  # type: ignore[attr-defined]
    given = exporter.make_context(command, list(words)).params
    assert [given["port"]] == [port["containerPort"] for port in asked["ports"]]
    assert str(given["port"]) == EXPORTER["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"]
    assert asked["image"] == container(PLAIN)["image"]


def test_the_gpu_variant_differs_in_what_a_gpu_needs() -> None:
    kept = ("startupProbe", "readinessProbe", "livenessProbe", "lifecycle", "image", "args", "securityContext")
    assert [container(PLAIN)[name] for name in kept] == [container(GPU)[name] for name in kept]
    assert container(GPU)["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_compose_takes_it() -> None:
    made = PyCompose.from_yaml(yaml.safe_dump(COMPOSE))  # with the anchors resolved
    assert sorted(made.service_names()) == ["jaeger", "valkey", "worker-1", "worker-2"]
    with pytest.raises(ValueError, match="portz"):
        PyCompose.from_yaml("services: {a: {image: x, portz: ['1:1']}}")


def test_the_image_has_what_it_is_built_from() -> None:
    build = COMPOSE["services"]["worker-1"]["build"]
    context = (DEPLOY / build["context"]).resolve()
    lines = (context / build["dockerfile"]).read_text().splitlines()
    copied = [word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]]
    assert len(copied) > 4
    let_in = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for name in copied:
        assert (context / name).exists(), name
        assert f"!{name}" in let_in, name
