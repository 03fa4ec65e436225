"""Ready commands for a plan: our own server, or vLLM; and its simulation."""

from __future__ import annotations

import json
import shlex
from math import ceil

from twostroke.model_spec.public_models import hub_id
from twostroke.planner.apart.split_scenario import LEAST_PROMPT, pool_text
from twostroke.planner.engines import EngineChoice
from twostroke.planner.plan import Plan, PromptReplicas
from twostroke.planner.search import Search
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
LISTEN = "--listen 0.0.0.0:8100 --token-file token"
KV_TRANSFER = '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'
# Prompts that may wait to be fetched, in the memory of a worker that computes prompts.
WAITING_PROMPTS = 16
# Formats of weights that take no flag, and those that ``--quantization`` rounds to. Stored floats
# of 8 bits are decoded while they load, so that they take the flag, too.
_PLAIN = ("bf16", "fp32")
_ROUNDED = {"int8": "int8", "int4": "int4", "fp8": "fp8", "fp8_block": "fp8"}


def engine_flags(search: Search, engine: EngineChoice) -> list[str]:
    """Flags of ``twostroke serve`` and ``worker``, and of ``vllm serve`` as well."""
    flags = []
    ways = {"tensor": engine.tp, "pipeline": engine.pp, "data": engine.dp}
    for name, size in ways.items():
        if size > 1:
            flags += [f"--{name}-parallel-size", f"{size}"]
    flags += ["--enable-expert-parallel"] * engine.ep
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
    flags = serve_flags(search, engine)
    count = plan.replicas + plan.spare
    if not runs_here(plan):
        return _vllm_commands(search, plan)
    if plan.prompts is not None:
        return _commands_of_pools(search, plan, plan.prompts)
    if count == 1:
        return [("one server", shlex.join(["twostroke", "serve", model, *flags]))]
    worker = shlex.join(["twostroke", "worker", model, *flags])
    return [
        (f"on each of {count} machines", f"{worker} {LISTEN}"),
        ("before them", _route(model, count)),
    ]


def runs_here(plan: Plan) -> bool:
    """Whether twostroke's own engines are split and hand on as the plan says."""
    if not plan.engine.parallel.splits_tensors_only:
        return False
    # A tier of blocks is of one device: ranks have none.
    return plan.prompts is None or plan.engine.num_devices == plan.prompts.engine.num_devices == 1


def serve_flags(search: Search, engine: EngineChoice) -> list[str]:
    """All flags of ``twostroke serve`` and ``worker``: formats and drafts too."""
    flags = [*engine_flags(search, engine), *_draft_flags(search, engine)]
    rounded = _ROUNDED.get(engine.weights)
    is_kept = engine.weights == search.builder.spec.format and rounded != "fp8"
    if rounded is not None and not is_kept and caveat(search, engine) is None:
        flags += ["--quantization", rounded]
    return flags


def vllm_flags(search: Search, engine: EngineChoice) -> list[str]:
    """All flags of ``vllm serve``, which rounds to fp8 alone."""
    flags = [*engine_flags(search, engine), *_draft_flags(search, engine)]
    is_rounded = engine.weights == "fp8" and search.builder.spec.format in _PLAIN
    return [*flags, "--quantization", "fp8"] if is_rounded else flags


def vllm_checkpoint(search: Search, engine: EngineChoice) -> str | None:
    """What vLLM is to load in place of the model's own checkpoint, where it does not round."""
    stored = search.builder.spec.format
    if engine.weights in (stored, *_PLAIN) or (engine.weights == "fp8" and stored in _PLAIN):
        return None
    return f"give vLLM a checkpoint of {engine.weights} weights in place of the model's own"


def draft_settings(search: Search, engine: EngineChoice) -> dict[str, object] | None:
    """What ``--speculative-config`` says, here and for vLLM."""
    if not engine.drafts.tokens:
        return None
    model = search.builder.search.draft_model
    by: dict[str, object] = {"method": "ngram"} if model is None else {"model": hub_id(model)}
    return {**by, "num_speculative_tokens": engine.drafts.tokens}


def _draft_flags(search: Search, engine: EngineChoice) -> list[str]:
    settings = draft_settings(search, engine)
    return [] if settings is None else ["--speculative-config", json.dumps(settings)]


def _route(model: str, count: int) -> str:
    workers = " ".join(f"--worker gpu{number}:8100" for number in range(1, min(count, 3) + 1))
    rest = " ..." if count > 3 else ""
    return f"twostroke route {shlex.quote(model)} {workers}{rest} --token-file token"


def _commands_of_pools(
    search: Search, plan: Plan, prompts: PromptReplicas
) -> list[tuple[str, str]]:
    """Workers with roles, and the router before them."""
    model = hub_id(search.builder.model)
    memory = f"--prefill-memory {offered_gib(search, prompts.engine)}GiB"
    counts = prompts.replicas + prompts.spare, plan.replicas + plan.spare
    first, second = (
        shlex.join(["twostroke", "worker", model, *serve_flags(search, engine)])
        for engine in (prompts.engine, plan.engine)
    )
    return [
        (f"on each of {counts[0]} machines", f"{first} --role prefill {memory} {LISTEN}"),
        (f"on each of {counts[1]} machines", f"{second} --role decode {LISTEN}"),
        ("before them", _route(model, sum(counts))),
    ]


def offered_gib(search: Search, engine: EngineChoice) -> int:
    """GiB of host memory for blocks of prompts that wait to be fetched."""
    info = search.builder.deployment(engine).info
    blocks = ceil(search.builder.lengths.prompt / info.block_size) * info.kv_groups.count
    return max(1, ceil(WAITING_PROMPTS * blocks * info.block_bytes / 2**30))


def _vllm_commands(search: Search, plan: Plan) -> list[tuple[str, str]]:
    """Commands of vLLM, for what twostroke's own engines do not do."""
    model = hub_id(search.builder.model)
    pools = [(plan.engine, plan.replicas + plan.spare)]
    if plan.prompts is not None:
        pools.insert(0, (plan.prompts.engine, plan.prompts.replicas + plan.prompts.spare))
    transfer = [] if plan.prompts is None else ["--kv-transfer-config", KV_TRANSFER]
    return [
        (
            f"{role}{count} x",
            shlex.join(["vllm", "serve", model, *vllm_flags(search, engine), *transfer]),
        )
        for (engine, count), role in zip(
            pools, ("",) if plan.prompts is None else ("prefill: ", "decode: ")
        )
    ]


def caveats(search: Search, plan: Plan) -> list[str]:
    """What this project's own engine cannot do of a plan yet, and what vLLM needs for it."""
    if runs_here(plan):
        engines = [plan.engine] if plan.prompts is None else [plan.prompts.engine, plan.engine]
        texts = [caveat(search, engine) for engine in engines]
        return list(dict.fromkeys(text for text in texts if text is not None))
    why = "twostroke splits models by tensors alone: vLLM takes these flags"
    if plan.engine.parallel.splits_tensors_only:
        why = "twostroke hands blocks on between workers of one device each: vLLM does between all"
    checkpoint = vllm_checkpoint(search, plan.engine)
    return [why] if checkpoint is None else [why, checkpoint]


def caveat(search: Search, engine: EngineChoice) -> str | None:
    """What this project's own engine cannot do with the weights of a plan on its device."""
    sheet, weights = search.builder.sheet(engine.gpu), engine.weights
    if sheet.is_cpu or weights in _PLAIN:
        return None
    rounded = _ROUNDED.get(weights)
    is_nvidia = not RAY_NAMES.get(engine.gpu, "").startswith("AMD")
    if is_nvidia and rounded is not None and (rounded != "fp8" or "fp8" in sheet.dense_flops):
        return None
    return (
        f"twostroke runs {weights} weights decoded on {engine.gpu}: serve a checkpoint in that"
        " format by vLLM, which takes the same flags"
    )


def simulate_command(search: Search, plan: Plan) -> str:
    """The simulation of the whole plan, to be run again or varied."""
    engine, traffic, options = plan.engine, search.traffic, search.builder.search
    words = ["twostroke", "simulate", search.builder.model, "--router", "least-loaded"]
    if plan.prompts is not None:
        words += ["--prefill", pool_text(plan.prompts.engine, plan.prompts.replicas)]
        words += ["--decode", pool_text(engine, plan.replicas)]
        words += ["--prefill-min-tokens", f"{LEAST_PROMPT}"]
        if options.transfer_bandwidth is not None:
            words += ["--transfer-bandwidth", f"{options.transfer_bandwidth:g}"]
    else:
        words += ["--gpu", engine.gpu, "--tp", f"{engine.tp}", "--replicas", f"{plan.replicas}"]
        splits = {"data": engine.dp, "pipeline": engine.pp}
        for name, size in splits.items():
            if size > 1:
                words += [f"--{name}-parallel-size", f"{size}"]
        words += ["--enable-expert-parallel"] * engine.ep
        words += ["--max-num-seqs", f"{engine.seqs}"]
        words += ["--max-num-batched-tokens", f"{engine.budget}"]
    words += ["--weight-dtype", engine.weights, "--kv-cache-dtype", engine.kv_cache]
    words += ["--max-model-len", f"{search.builder.length}"]
    if engine.drafts.tokens:
        words += ["--speculative-tokens", f"{engine.drafts.tokens}"]
        words += ["--acceptance", f"{engine.drafts.acceptance:g}"]
    if options.efficiencies != "auto":
        words += ["--efficiencies", options.efficiencies]
    if options.serving_stack is not None:
        words += ["--serving-stack", options.serving_stack]
    return shlex.join([*words, *_workload_flags(traffic)])


def _workload_flags(traffic: Traffic) -> list[str]:
    workload = traffic.workload
    flags = ["--workload", workload.workload]
    if workload.trace_path is not None:
        flags += ["--trace-path", str(workload.trace_path)]
    elif workload.workload == "random":
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
