"""A fleet as KubeRay's operator takes it: a Ray cluster with a group of machines for each pool."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from twostroke.cli.serving.fleet_file import MAX_BYTES, FleetFile
from twostroke.core.errors import ConfigError
from twostroke.core.files import read_bytes
from twostroke.core.network.address import Address
from twostroke.engine.fleet.pool_plan import PoolPlan

FOLDER = "/etc/twostroke"
START = "ulimit -n 65536; $KUBERAY_GEN_RAY_START_CMD"
# In front of a head that runs, the server; the pod ends with it, and Kubernetes starts another.
SERVE = (
    f"({START}) & until ray health-check 2>/dev/null; do sleep 1; done;"
    f" exec twostroke up --config {FOLDER}/fleet.toml --ray auto --port "
)


def kuberay_values(path: Path, file: FleetFile, image: str) -> str:
    """YAML for ``kubectl apply``: the file, a RayCluster whose head serves it, and a Service.

    A group has as many machines as its pool has replicas, at least and at most, and one more while
    they are replaced; where a pool has ``autoscale``, Ray starts machines as ``twostroke up`` asks
    for places.

    Args:
        image: Has twostroke with Ray, the same version everywhere.

    Raises:
        ConfigError: No Service could reach the server.
    """
    if Address(file.server.host, file.server.port).is_loopback:
        raise ConfigError(
            f"{path}: [server] listens on {file.server.host}, which no Service reaches",
            hint='give host = "0.0.0.0" in [server], and keys or a network policy',
        )
    if not file.server.port:
        raise ConfigError(
            f"{path}: [server] takes any free port, which no Service finds",
            hint="give port = 8000 in [server], or --port 8000",
        )
    names = _group_names(file)
    groups = "".join(
        _group(names[pool], plan, json.dumps(image)) for pool, plan in file.pools.items()
    )
    return f"{_file_values(path)}---\n{_cluster(file, image)}{groups}---\n{_service(file)}"


def _file_values(path: Path) -> str:
    text = read_bytes(path, MAX_BYTES).decode().replace("\r\n", "\n")
    lines = text.rstrip().split("\n")
    if all(line.replace("\t", " ").isprintable() for line in lines):
        # How far it is indented is said, since its first line may begin with spaces.
        content = "|2\n" + "\n".join(line and f"    {line}" for line in lines)
    else:
        content = json.dumps(text)  # some of it would end a line in YAML, and does not in TOML
    return f"""\
# Made by `twostroke up --kuberay`; needs KubeRay's operator. The image is to have
# twostroke[ray] and Ray's own tools (ray[default]). Models in folders, and files that
# [server] names, are to be mounted at the same paths in all pods.
apiVersion: v1
kind: ConfigMap
metadata: {{name: twostroke-fleet}}
data:
  fleet.toml: {content}
"""


def _cluster(file: FleetFile, image: str) -> str:
    scaled = any(plan.scaling.autoscale for plan in file.pools.values())
    return f"""\
apiVersion: ray.io/v1
kind: RayCluster
metadata:
  name: twostroke
  annotations: {{ray.io/overwrite-container-cmd: "true"}}
spec:
  rayVersion: {json.dumps(_ray_version())}
  enableInTreeAutoscaling: {"true" if scaled else "false"}
  headGroupSpec:
    rayStartParams: {{num-cpus: "0"}}  # replicas go to the groups below
    template:
      spec:
        terminationGracePeriodSeconds: {int(file.server.shutdown_timeout) + 30}
        containers:
          - name: ray-head
            image: {json.dumps(image)}
            command: ["/bin/bash", "-lc", "--"]
            args: [{json.dumps(f"{SERVE}{file.server.port}")}]
            ports:
              - {{containerPort: {file.server.port}, name: http}}
              - {{containerPort: 6379, name: gcs-server}}
            readinessProbe: {{httpGet: {{path: /health, port: http}}}}
            resources:
              requests: {{cpu: "2", memory: 4Gi}}
            volumeMounts: [{{name: fleet, mountPath: {FOLDER}}}]
        volumes: [{{name: fleet, configMap: {{name: twostroke-fleet}}}}]
  workerGroupSpecs:
"""


def _service(file: FleetFile) -> str:
    return f"""\
apiVersion: v1
kind: Service
metadata: {{name: twostroke}}
spec:
  selector: {{ray.io/cluster: twostroke, ray.io/node-type: head}}
  ports: [{{name: http, port: {file.server.port}, targetPort: http}}]
"""


def _group(name: str, plan: PoolPlan, image: str) -> str:
    options, model = plan.options, plan.config.model
    on_gpu = model.device != "cpu"
    gpus = options.num_gpus
    if gpus is None:
        gpus = model.tensor_parallel_size if on_gpu else 0
    limit = f", nvidia.com/gpu: {max(1, round(gpus))}" if gpus else ""
    autoscale = plan.scaling.autoscale is not None
    least = min(plan.scaling.min_replicas, plan.num_at_first) if autoscale else plan.num_at_first
    return f"""\
    - groupName: {name}
      replicas: {plan.num_at_first}
      minReplicas: {least}
      maxReplicas: {plan.most + 1}
      rayStartParams: {{}}
      template:
        spec:
          containers:
            - name: ray-worker
              image: {image}
              command: ["/bin/bash", "-lc", "--"]
              args: [{json.dumps(START)}]
              resources:
                limits: {{cpu: "{options.num_cpus or 1:g}"{limit}}}
"""


def _group_names(file: FleetFile) -> dict[str, str]:
    """Names for Kubernetes by those of pools, each once."""
    return dict(zip(file.pools, _distinct(file.pools), strict=True))


def _distinct(pools: dict[str, PoolPlan]) -> Iterator[str]:
    taken: Counter[str] = Counter()
    for pool in pools:
        name = re.sub(r"[^a-z0-9]+", "-", pool.lower()).strip("-")[:40] or "pool"
        taken[name] += 1
        yield name if taken[name] == 1 else f"{name}-{taken[name]}"


def _ray_version() -> str:
    """That of this machine's Ray, which the image should have as well."""
    try:
        return version("ray")
    except PackageNotFoundError:
        return "2.60.0"
