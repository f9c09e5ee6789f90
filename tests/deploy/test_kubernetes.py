"""The Kubernetes manifests: built by Kustomize, validated, and compared with what they run."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
import yaml
from deploy_files import (
    DEPLOY,
    find_command_problem,
    find_image_problem,
    load_yaml,
    parse_seconds,
    run_tool,
)
from outside_programs import find_program

KUBERNETES = DEPLOY / "kubernetes"
OVERLAYS = ["development", "production"]
OLDEST_VERSION = "1.28"
CUSTOM_KINDS = {"ScaledObject", "TriggerAuthentication", "ServiceMonitor", "PodMonitor"}
QUEUES = ["mail", "pdf"]
Manifest = dict[str, Any]


@functools.cache
def build_overlay(folder: str) -> list[Manifest]:
    built = run_tool(*shlex.split(find_program("kustomize")), KUBERNETES / folder)
    assert built.returncode == 0, built.stderr
    return [manifest for manifest in yaml.safe_load_all(built.stdout) if manifest]


def find_manifests(kind: str, overlay: str = "production") -> list[Manifest]:
    return [manifest for manifest in build_overlay(f"overlays/{overlay}") if manifest["kind"] == kind]


def find_deployment(name: str) -> Manifest:
    [deployment] = [each for each in find_manifests("Deployment") if each["metadata"]["name"] == name]
    return deployment


def list_pods(overlay: str) -> Iterator[tuple[str, Manifest]]:
    for manifest in [*find_manifests("Deployment", overlay), *find_manifests("Job", overlay)]:
        yield manifest["metadata"]["name"], manifest["spec"]["template"]


def matches(selector: Manifest, pod: Manifest) -> bool:
    return bool(selector["matchLabels"].items() <= pod["metadata"]["labels"].items())


def read_variables(container: Manifest) -> dict[str, str]:
    settings: dict[str, str] = load_yaml(KUBERNETES / "base" / "settings.yaml")["data"]
    return settings | {each["name"]: each["value"] for each in container.get("env", [])}


@pytest.mark.parametrize("version", [OLDEST_VERSION, kubernetes_validate.latest_version()])
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_manifests_are_valid(overlay: str, version: str) -> None:
    manifests = build_overlay(f"overlays/{overlay}")
    assert len(manifests) >= 10
    for manifest in manifests:
        if manifest["kind"] not in CUSTOM_KINDS:
            kubernetes_validate.validate(manifest, version, strict=True)


def test_horizontal_pod_autoscalers_are_valid() -> None:
    autoscalers = list(yaml.safe_load_all((KUBERNETES / "components/hpa/autoscalers.yaml").read_text()))
    for autoscaler, queue in zip(autoscalers, QUEUES, strict=True):
        kubernetes_validate.validate(autoscaler, OLDEST_VERSION, strict=True)
        target = autoscaler["spec"]["scaleTargetRef"]["name"]
        [container] = find_deployment(target)["spec"]["template"]["spec"]["containers"]
        [metric] = autoscaler["spec"]["metrics"]
        assert metric["external"]["metric"]["selector"]["matchLabels"]["queue"] == queue
        # The gauge counts workers of ten slots.
        slots_per_worker = {"5": 50, "400m": 4}[metric["external"]["target"]["averageValue"]]
        assert read_variables(container)["CONCURRENCY"] == str(slots_per_worker)


def test_validation_sees_a_mistake() -> None:
    deployment = {**find_deployment("holdfast-api"), "spce": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, OLDEST_VERSION, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_are_confined(overlay: str) -> None:
    pods = list(list_pods(overlay))
    assert len(pods) >= 3
    for name, pod in pods:
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["automountServiceAccountToken"] is False
        for container in spec["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]
            assert find_image_problem(container["image"]) is None


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_commands_exist(overlay: str) -> None:
    for _, pod in list_pods(overlay):
        [container] = pod["spec"]["containers"]
        variables = read_variables(container)
        words = [variables[word[2:-1]] if word.startswith("$(") else word for word in container["args"]]
        assert find_command_problem(words) is None


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_deployments_have_probes_and_time_to_finish(overlay: str) -> None:
    for deployment in find_manifests("Deployment", overlay):
        pod = deployment["spec"]["template"]["spec"]
        [container] = pod["containers"]
        ports = {port["name"] for port in container["ports"]}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            [check] = [value for key, value in container[probe].items() if key in {"httpGet", "tcpSocket"}]
            assert check["port"] in ports
        if "GRACE" in read_variables(container):
            grace_s = parse_seconds(read_variables(container)["GRACE"])
            assert pod["terminationGracePeriodSeconds"] >= grace_s + 15


def test_every_deployment_has_a_disruption_budget() -> None:
    budgets = [budget["spec"]["selector"] for budget in find_manifests("PodDisruptionBudget")]
    for deployment in find_manifests("Deployment"):
        pod = deployment["spec"]["template"]
        assert matches(deployment["spec"]["selector"], pod)
        assert len([selector for selector in budgets if matches(selector, pod)]) == 1


@pytest.mark.parametrize("queue", QUEUES)
def test_autoscaler_asks_for_its_own_queue(queue: str) -> None:
    scaled = {each["metadata"]["name"]: each for each in find_manifests("ScaledObject")}[
        f"holdfast-worker-{queue}"
    ]
    [container] = find_deployment(scaled["spec"]["scaleTargetRef"]["name"])["spec"]["template"]["spec"][
        "containers"
    ]
    variables = read_variables(container)
    [trigger] = scaled["spec"]["triggers"]
    assert variables["QUEUES"] == queue
    expected = f"http://holdfast-api:8700/api/queues/{queue}/scale?per_worker={variables['CONCURRENCY']}"
    assert trigger["metadata"]["url"] == expected
    [authentication] = find_manifests("TriggerAuthentication")
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    # Autoscalers set the replicas; a number in the deployment would reset them with every rollout.
    assert "replicas" not in find_deployment(scaled["spec"]["scaleTargetRef"]["name"])["spec"]


def test_referenced_secrets_and_settings_exist() -> None:
    secrets = list(yaml.safe_load_all((KUBERNETES / "secrets.example.yaml").read_text()))
    keys = {secret["metadata"]["name"]: set(secret["stringData"]) for secret in secrets}
    for secret in secrets:
        kubernetes_validate.validate(secret, OLDEST_VERSION, strict=True)
    settings = {settings["metadata"]["name"] for settings in find_manifests("ConfigMap")}
    for _, pod in list_pods("production"):
        for source in pod["spec"]["containers"][0]["envFrom"]:
            if "secretRef" in source:
                assert "DATABASE_URL" in keys[source["secretRef"]["name"]]
            else:
                assert source["configMapRef"]["name"] in settings
    [authentication] = find_manifests("TriggerAuthentication")
    [reference] = authentication["spec"]["secretTargetRef"]
    assert reference["key"] in keys[reference["name"]]


def test_only_migrations_have_the_login_of_the_owner() -> None:
    users = [
        name for name, pod in list_pods("production") if "holdfast-migrate" in str(pod["spec"]["containers"])
    ]
    assert users == ["holdfast-migrate"]


def test_monitors_and_policies_select_pods_and_ports() -> None:
    pods = [pod for _, pod in list_pods("production")]
    selectors = [
        *((policy["spec"]["podSelector"], policy) for policy in find_manifests("NetworkPolicy")),
        *((monitor["spec"]["selector"], monitor) for monitor in find_manifests("PodMonitor")),
    ]
    for selector, manifest in selectors:
        selected = [pod for pod in pods if matches(selector, pod)]
        assert selected, manifest["metadata"]["name"]
        named_ports = set(re.findall(r"'port': '(\w+)'", str(manifest["spec"])))
        for pod in selected:
            assert named_ports <= {port["name"] for port in pod["spec"]["containers"][0].get("ports", [])}
    [service], [monitor] = find_manifests("Service"), find_manifests("ServiceMonitor")
    assert matches(monitor["spec"]["selector"], service)
    assert monitor["spec"]["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}


def test_helm_chart_declares_what_its_templates_read() -> None:
    """Nothing renders the chart here: only names are compared."""
    chart = DEPLOY / "helm" / "holdfast"
    values = load_yaml(chart / "values.yaml")
    assert "not run" in load_yaml(chart / "Chart.yaml")["description"]
    templates = [path.read_text() for path in (chart / "templates").glob("*.yaml")]
    assert len(templates) >= 3
    for text in templates:
        assert text.count("{{") == text.count("}}")
        blocks = re.findall(r"{{-? ?(if|range|with|end)\b", text)
        assert blocks.count("end") * 2 == len(blocks)
        for path in re.findall(r"\$?\.Values\.([A-Za-z.]+)", text):
            value: Any = values
            for name in path.split("."):
                assert name in value, path
                value = value[name]
