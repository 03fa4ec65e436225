"""Ready commands and values for a plan: our own server, vLLM, Kubernetes, Ray Serve."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from twostroke.model_spec.public_models import hub_id
from twostroke.planner.engines import EngineChoice
from twostroke.planner.search import Plan, Search
from twostroke.planner.traffic import Traffic

# Names that Ray gives to devices, by our sheets.
RAY_NAMES = {
    "a10": "A10G",
    "a100-40gb-sxm": "A100-40G",
    "a100-80gb-sxm": "A100-80G",
    "b200": "B200",
    "h100-pcie": "H100",
    "h100-sxm": "H100",
    "h200": "H200",
    "l4": "L4",
    "l40s": "L40S",
    "mi300x": "AMD-Instinct-MI300X-OAM",
    "mi325x": "AMD-Instinct-MI325X-OAM",
}
_ROUNDED = ("int8", "int4")  # formats that ``--quantization`` makes


def engine_flags(search: Search, engine: EngineChoice) -> list[str]:
    """Flags of ``twostroke serve`` and ``worker``, and of ``vllm serve`` as well."""
    flags = []
    if engine.tp > 1:
        flags += ["--tensor-parallel-size", f"{engine.tp}"]
    flags += ["--max-num-seqs", f"{engine.seqs}"]
    flags += ["--max-num-batched-tokens", f"{engine.budget}"]
    flags += ["--max-model-len", f"{search.builder.length}"]
    if engine.kv_cache != "bf16":
        flags += ["--kv-cache-dtype", engine.kv_cache]
    return flags


def serve_commands(search: Search, plan: Plan) -> list[tuple[str, str]]:
    """Commands, each with a word on where it runs."""
    engine, name = plan.engine, search.builder.model
    model = hub_id(name)
    flags = engine_flags(search, engine)
    if engine.drafts.tokens and not search.builder.search.draft_model:
        settings = f'{{"method": "ngram", "num_speculative_tokens": {engine.drafts.tokens}}}'
        flags += ["--speculative-config", settings]
    is_rounded = engine.weights in _ROUNDED and engine.weights != search.builder.spec.format
    if is_rounded and caveat(search, engine) is None:
        flags += ["--quantization", engine.weights]
    count = plan.replicas + plan.spare
    if count == 1:
        return [("one server", shlex.join(["twostroke", "serve", model, *flags]))]
    worker = shlex.join(["twostroke", "worker", model, *flags])
    workers = " ".join(f"--worker gpu{number}:8100" for number in range(1, min(count, 3) + 1))
    rest = " ..." if count > 3 else ""
    return [
        (
            f"on each of {count} machines",
            f"{worker} --listen 0.0.0.0:8100 --token-file token",
        ),
        (
            "before them",
            f"twostroke route {shlex.quote(model)} {workers}{rest} --token-file token",
        ),
    ]


def caveat(search: Search, engine: EngineChoice) -> str | None:
    """What this project's own engine cannot do of a plan yet."""
    sheet = search.builder.sheet(engine.gpu)
    if sheet.is_cpu or engine.weights in ("bf16", "fp32"):
        return None
    if engine.weights in _ROUNDED and not RAY_NAMES.get(engine.gpu, "").startswith("AMD"):
        if not any(layer.experts for layer in search.builder.spec.layers):
            return None
        return (
            f"twostroke runs experts of {engine.weights} weights decoded, or one by one, on a GPU:"
            " serve them by vLLM, which takes the same flags"
        )
    return (
        f"twostroke runs {engine.weights} weights on no GPU yet: serve a checkpoint in that format"
        " by vLLM, which takes the same flags"
    )


def simulate_command(search: Search, plan: Plan) -> str:
    """The simulation of the whole plan, to be run again or varied."""
    engine, traffic = plan.engine, search.traffic
    words = ["twostroke", "simulate", search.builder.model, "--gpu", engine.gpu]
    words += ["--tp", f"{engine.tp}", "--replicas", f"{plan.replicas}", "--router", "least-loaded"]
    words += ["--weight-dtype", engine.weights, "--kv-cache-dtype", engine.kv_cache]
    words += ["--max-num-seqs", f"{engine.seqs}"]
    words += ["--max-num-batched-tokens", f"{engine.budget}"]
    if engine.drafts.tokens:
        words += ["--speculative-tokens", f"{engine.drafts.tokens}"]
        words += ["--acceptance", f"{engine.drafts.acceptance:g}"]
    return shlex.join([*words, *_workload_flags(traffic)])


def _workload_flags(traffic: Traffic) -> list[str]:
    workload = traffic.workload
    flags = ["--workload", workload.workload]
    if workload.trace_path is not None:
        flags += ["--trace-path", str(workload.trace_path)]
    else:
        flags += ["--input-len", f"{workload.input_len}", "--output-len", f"{workload.output_len}"]
        if workload.input_p95 is not None:
            flags += ["--input-p95", f"{workload.input_p95}"]
        if workload.output_p95 is not None:
            flags += ["--output-p95", f"{workload.output_p95}"]
        if workload.prefix_len:
            flags += ["--prefix-len", f"{workload.prefix_len}"]
    if traffic.users is None:
        return [*flags, "--rate", f"{traffic.rate:g}"]
    flags += ["--arrivals", "closed", "--concurrency", f"{traffic.users}"]
    if traffic.think_time:
        flags += ["--think-time", f"{traffic.think_time:g}"]
    return [*flags, "--num-requests", f"{10 * traffic.users}"]


def kubernetes_values(search: Search, plan: Plan) -> str:
    """A Deployment of workers, one of the router, and their Services."""
    engine, model = plan.engine, hub_id(search.builder.model)
    name = re.sub(r"[^a-z0-9-]+", "-", search.builder.model.lower()).strip("-")[:40] or "model"
    amd = engine.gpu.startswith("mi")
    resource = "amd.com/gpu" if amd else "nvidia.com/gpu"
    is_cpu = search.builder.sheet(engine.gpu).is_cpu
    devices = "" if is_cpu else f"\n              {resource}: {engine.tp}"
    arguments = ["worker", model, *engine_flags(search, engine), "--listen", "0.0.0.0:8100"]
    arguments += ["--token-file", "/run/secrets/twostroke/token"]
    count = plan.replicas + plan.spare
    return f"""\
# Made by `twostroke plan`. Set the image, and make the secret `{name}-token` with a file `token`.
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: {name}-worker}}
spec:
  serviceName: {name}-worker
  replicas: {count}
  selector: {{matchLabels: {{app: {name}-worker}}}}
  template:
    metadata: {{labels: {{app: {name}-worker}}}}
    spec:
      containers:
        - name: worker
          image: YOUR_REGISTRY/twostroke
          command: [twostroke]
          args: [{", ".join(_quoted(word) for word in arguments)}]
          ports: [{{containerPort: 8100}}]
          resources:
            limits:{devices or " {}"}
          volumeMounts: [{{name: token, mountPath: /run/secrets/twostroke}}]
      volumes: [{{name: token, secret: {{secretName: {name}-token}}}}]
---
apiVersion: v1
kind: Service
metadata: {{name: {name}-worker}}
spec: {{clusterIP: None, selector: {{app: {name}-worker}}, ports: [{{port: 8100}}]}}
---
{_router_values(name, model, count)}"""


def _router_values(name: str, model: str, count: int) -> str:
    workers = ", ".join(
        f'"--worker", "{name}-worker-{number}.{name}-worker:8100"' for number in range(count)
    )
    return f"""\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  replicas: 1
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      containers:
        - name: router
          image: YOUR_REGISTRY/twostroke
          command: [twostroke]
          args: ["route", {_quoted(model)}, {workers}, "--host", "0.0.0.0", "--token-file",
            "/run/secrets/twostroke/token"]
          ports: [{{containerPort: 8000}}]
          volumeMounts: [{{name: token, mountPath: /run/secrets/twostroke}}]
      volumes: [{{name: token, secret: {{secretName: {name}-token}}}}]
---
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec: {{selector: {{app: {name}}}, ports: [{{port: 8000}}]}}
"""


def ray_serve_values(search: Search, plan: Plan) -> str:
    """A configuration of Ray Serve's LLM application, whose engine is vLLM."""
    engine, model = plan.engine, hub_id(search.builder.model)
    kwargs = {
        "tensor_parallel_size": f"{engine.tp}",
        "max_num_seqs": f"{engine.seqs}",
        "max_num_batched_tokens": f"{engine.budget}",
        "max_model_len": f"{search.builder.length}",
    }
    if engine.kv_cache != "bf16":
        kwargs["kv_cache_dtype"] = engine.kv_cache
    lines = "\n".join(f"            {name}: {value}" for name, value in kwargs.items())
    accelerator = RAY_NAMES.get(engine.gpu, "")
    named = f"\n          accelerator_type: {accelerator}" if accelerator else ""
    return f"""\
# Made by `twostroke plan`: `serve deploy ray-serve.yaml`. Weights: {engine.weights}.
applications:
  - name: llm
    route_prefix: /
    import_path: ray.serve.llm:build_openai_app
    args:
      llm_configs:
        - model_loading_config:
            model_id: {_quoted(search.builder.model)}
            model_source: {_quoted(model)}{named}
          deployment_config:
            num_replicas: {plan.replicas + plan.spare}
          engine_kwargs:
{lines}
"""


def write_manifests(search: Search, plan: Plan, folder: Path) -> list[Path]:
    """Write both files into the folder, which is made. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "kubernetes.yaml": kubernetes_values(search, plan),
        "ray-serve.yaml": ray_serve_values(search, plan),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def _quoted(word: str) -> str:
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'
