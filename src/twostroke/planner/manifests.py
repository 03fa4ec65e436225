"""Files that start a plan: for `twostroke up`, for Kubernetes, for Ray Serve."""

from __future__ import annotations

import json
import re
from pathlib import Path

from twostroke.model_spec.public_models import hub_id
from twostroke.planner.commands import (
    KV_TRANSFER,
    RAY_NAMES,
    caveats,
    draft_settings,
    offered_gib,
    runs_here,
    serve_flags,
    vllm_checkpoint,
    vllm_flags,
)
from twostroke.planner.engines import EngineChoice
from twostroke.planner.plan import Plan
from twostroke.planner.search import Search

# Of one pool of `twostroke up`.
MOST_OF_A_FLEET = 64


def kubernetes_values(search: Search, plan: Plan) -> str:
    """Workers and a router before them; servers of vLLM where twostroke's own would not do."""
    model = hub_id(search.builder.model)
    name = _object_name(search)
    count = plan.replicas + plan.spare
    if not runs_here(plan):
        return _vllm_values(search, plan, name)
    if plan.prompts is None:
        pools: list[tuple[str, EngineChoice, int, list[str]]] = [("worker", plan.engine, count, [])]
    else:
        memory = f"{offered_gib(search, plan.prompts.engine)}GiB"
        of_prompts = ["--role", "prefill", "--prefill-memory", memory]
        counts = plan.prompts.replicas + plan.prompts.spare, count
        pools = [
            ("prefill", plan.prompts.engine, counts[0], of_prompts),
            ("decode", plan.engine, counts[1], ["--role", "decode"]),
        ]
    texts = [
        _workers(search, f"{name}-{role}", name, engine, size, flags)
        for role, engine, size, flags in pools
    ]
    addresses = [
        f"{name}-{role}-{number}.{name}-{role}:8100"
        for role, _, size, _ in pools
        for number in range(size)
    ]
    note = f"Set the image, and make the secret `{name}-token` with a file `token`."
    made = _made(note, *caveats(search, plan))
    return "".join([made, *texts, _router_values(name, model, addresses)])


def _object_name(search: Search) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", search.builder.model.lower()).strip("-")[:40] or "model"


def _made(note: str, *more: str | None) -> str:
    """The comment at the top, and what else is to be seen to."""
    texts = [f"{text[0].upper()}{text[1:]}." for text in more if text is not None]
    return "".join(f"# {text}\n" for text in [f"Made by `twostroke plan`. {note}", *texts])


def _devices(search: Search, engine: EngineChoice) -> str:
    if search.builder.sheet(engine.gpu).is_cpu:
        return " {}"
    resource = "amd.com/gpu" if engine.gpu.startswith("mi") else "nvidia.com/gpu"
    return f"\n              {resource}: {engine.num_devices}"


def _workers(
    search: Search, name: str, model_name: str, engine: EngineChoice, count: int, flags: list[str]
) -> str:
    model = hub_id(search.builder.model)
    arguments = ["worker", model, *serve_flags(search, engine), "--listen", "0.0.0.0:8100"]
    arguments += [*flags, "--token-file", "/run/secrets/twostroke/token"]
    return f"""\
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: {name}}}
spec:
  serviceName: {name}
  replicas: {count}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      containers:
        - name: worker
          image: YOUR_REGISTRY/twostroke
          command: [twostroke]
          args: [{", ".join(json.dumps(word) for word in arguments)}]
          ports: [{{containerPort: 8100}}]
          resources:
            limits:{_devices(search, engine)}
          volumeMounts: [{{name: token, mountPath: /run/secrets/twostroke}}]
      volumes: [{{name: token, secret: {{secretName: {model_name}-token}}}}]
---
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec: {{clusterIP: None, selector: {{app: {name}}}, ports: [{{port: 8100}}]}}
---
"""


def _vllm_values(search: Search, plan: Plan, name: str) -> str:
    """Servers of vLLM and a Service; blocks that move need Ray Serve's or a router of its kind."""
    model, engine = hub_id(search.builder.model), plan.engine
    if plan.prompts is not None:
        return _made("vLLM's prefill and decode need a router: see ray-serve.yaml.")
    arguments = [model, *vllm_flags(search, engine)]
    note = "vLLM, since twostroke splits models by tensors alone."
    return f"""\
{_made(note, vllm_checkpoint(search, engine))}apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  replicas: {plan.replicas + plan.spare}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      containers:
        - name: vllm
          image: vllm/vllm-openai
          args: [{", ".join(json.dumps(word) for word in arguments)}]
          ports: [{{containerPort: 8000}}]
          resources:
            limits:{_devices(search, engine)}
---
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec: {{selector: {{app: {name}}}, ports: [{{port: 8000}}]}}
"""


def _router_values(name: str, model: str, addresses: list[str]) -> str:
    workers = ", ".join(f'"--worker", "{address}"' for address in addresses)
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
          args: ["route", {json.dumps(model)}, {workers}, "--host", "0.0.0.0", "--token-file",
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
    engine, prompts = plan.engine, plan.prompts
    note = f"Run `serve deploy ray-serve.yaml`. Weights: {engine.weights}."
    begin = f"""\
{_made(note, vllm_checkpoint(search, engine))}applications:
  - name: llm
    route_prefix: /
"""
    answers = _ray_config(search, engine, plan.replicas + plan.spare, prompts is not None)
    if prompts is None:
        return f"""\
{begin}    import_path: ray.serve.llm:build_openai_app
    args:
      llm_configs:
        - {answers.replace(chr(10), chr(10) + "          ")}
"""
    computing = _ray_config(search, prompts.engine, prompts.replicas + prompts.spare, True)
    return f"""\
{begin}    import_path: ray.serve.llm:build_pd_openai_app
    args:
      prefill_config:
        {computing.replace(chr(10), chr(10) + "        ")}
      decode_config:
        {answers.replace(chr(10), chr(10) + "        ")}
"""


def _ray_config(search: Search, engine: EngineChoice, count: int, hands_on: bool) -> str:
    model = hub_id(search.builder.model)
    kwargs = {
        "tensor_parallel_size": f"{engine.tp}",
        "max_num_seqs": f"{engine.seqs}",
        "max_num_batched_tokens": f"{engine.budget}",
        "max_model_len": f"{search.builder.length}",
    }
    others = {"pipeline_parallel_size": engine.pp, "data_parallel_size": engine.dp}
    kwargs |= {name: f"{size}" for name, size in others.items() if size > 1}
    if engine.ep:
        kwargs["enable_expert_parallel"] = "true"
    if engine.kv_cache != "bf16":
        kwargs["kv_cache_dtype"] = engine.kv_cache
    if "--quantization" in vllm_flags(search, engine):
        kwargs["quantization"] = engine.weights
    drafts = draft_settings(search, engine)
    if drafts is not None:
        kwargs["speculative_config"] = json.dumps(drafts)
    if hands_on:
        kwargs["kv_transfer_config"] = KV_TRANSFER
    lines = "\n".join(f"  {name}: {value}" for name, value in kwargs.items())
    accelerator = RAY_NAMES.get(engine.gpu, "")
    named = f"\naccelerator_type: {accelerator}" if accelerator else ""
    return f"""\
model_loading_config:
  model_id: {json.dumps(search.builder.model)}
  model_source: {json.dumps(model)}{named}
deployment_config:
  num_replicas: {count}
engine_kwargs:
{lines}"""


def fleet_values(search: Search, plan: Plan) -> str | None:
    """A fleet of ``twostroke up``, which Ray places; ``None``: it has no such pool."""
    engine, count = plan.engine, plan.replicas + plan.spare
    if plan.prompts is not None or not runs_here(plan) or count > MOST_OF_A_FLEET:
        return None
    settings = {
        "model": json.dumps(hub_id(search.builder.model)),
        "replicas": f"{count}",
        "device": '"cpu"' if search.builder.sheet(engine.gpu).is_cpu else '"cuda"',
        "max-num-seqs": f"{engine.seqs}",
        "max-num-batched-tokens": f"{engine.budget}",
        "max-model-len": f"{search.builder.length}",
    }
    if engine.tp > 1:
        settings["tensor-parallel-size"] = f"{engine.tp}"
    if engine.kv_cache != "bf16":
        settings["kv-cache-dtype"] = json.dumps(engine.kv_cache)
    flags = serve_flags(search, engine)
    for name in ("quantization", "speculative-config"):
        if f"--{name}" in flags:
            settings[name] = json.dumps(flags[flags.index(f"--{name}") + 1])
    lines = "\n".join(f"{name} = {value}" for name, value in settings.items())
    made = _made("Start it by one of the two below.", *caveats(search, plan))
    return f"""\
{made}# `twostroke up --config fleet.toml --ray auto` on a Ray cluster, or
# `twostroke up --config fleet.toml --kuberay IMAGE | kubectl apply -f -` on Kubernetes.
# Add keys before others reach it: api-key-file in [server].
[server]
host = "0.0.0.0"
port = 8000

[pools.{_object_name(search)}]
{lines}
"""


def write_manifests(search: Search, plan: Plan, folder: Path) -> list[Path]:
    """Write the files into the folder, which is made. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "kubernetes.yaml": kubernetes_values(search, plan),
        "ray-serve.yaml": ray_serve_values(search, plan),
        "fleet.toml": fleet_values(search, plan),
    }
    written = []
    for name, text in texts.items():
        if text is not None:
            (folder / name).write_text(text, encoding="utf-8")
            written.append(folder / name)
    return written
