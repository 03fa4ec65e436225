"""From a ``quantization_config`` to a ``Scheme``: one reader for each method.

The fields are those of AutoGPTQ and GPTQModel, AutoAWQ, compressed-tensors, transformers
(``FineGrainedFP8Config``) and NVIDIA's ModelOpt. A field that is not known is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from twostroke.checkpoints.quantised.scheme import Layout, Scheme, Strategy
from twostroke.checkpoints.quantised.stated import Stated, scheme_refusal
from twostroke.model_spec.config_fields import short
from twostroke.model_spec.number_formats import stated_quantization

_ALL_TENSORS = "use the bfloat16, float16 or float32 version of this model"


def read_scheme(config: Mapping[str, Any]) -> Scheme | None:
    """The scheme that a ``config.json`` states; ``None`` if none, or MXFP4, which layers read.

    Raises:
        ModelLoadError: The method, or a value, is unknown or not supported; it names it.
    """
    inner = config.get("text_config")
    raw = stated_quantization(config)
    if not raw and isinstance(inner, Mapping):
        raw = stated_quantization(inner)
    if raw is None or raw == {}:
        return None
    if not isinstance(raw, Mapping):
        raise scheme_refusal(f"it must be an object, got {short(raw)}")
    method = raw.get("quant_method")
    if method is None and "config_groups" in raw:
        method = "compressed-tensors"
    if method == "mxfp4":
        return None
    reader = _READERS.get(method) if isinstance(method, str) else None
    if reader is None:
        shown = method[:40] if isinstance(method, str) else "unknown"
        methods = ", ".join(_READERS)
        raise scheme_refusal(
            f"the checkpoint is quantized ({shown}), which is not supported",
            f"{_ALL_TENSORS}; quantized ones may be {methods}",
        )
    return reader(Stated({**raw, "quant_method": None}, f"{method}: "))


def _gptq(fields: Stated) -> Scheme:
    bits = fields.one_of((2, 4, 8), "bits")
    group = fields.integer("group_size", default=128)
    versions = ("gptq", "gptq_v2")
    format_ = fields.one_of(versions, "checkpoint_format", "format", default="gptq")
    is_second = fields.flag("new_checkpoint_format") or format_ == "gptq_v2"
    fields.one_of(("int32",), "pack_dtype", default="int32")
    scheme = Scheme(
        method="gptq",
        layout="gptq",
        bits=bits,
        strategy=_by_group(group),
        group=max(group, 0),
        symmetric=False,  # zero points are always stored, and may all be in the middle
        act_order=fields.flag("desc_act"),
        stored_zero=0 if is_second else 1,
        values="qweight",
        scale="scales",
        ignored=fields.names("modules_to_not_convert"),
    )
    fields.finish(
        "sym damp_percent damp_auto_increment true_sequential static_groups model_name_or_path"
        " model_file_base_name model_seqlen dataset tokenizer meta quantizer lm_head batch_size"
        " block_name_to_quantize cache_block_outputs exllama_config max_input_length backend"
        " module_name_preceding_first_block modules_in_block_to_quantize pad_token_id"
        " use_cuda_fp16 use_exllama disable_exllama act_group_aware mse version"
    )
    return scheme


def _awq(fields: Stated) -> Scheme:
    bits = fields.one_of((4,), "bits", "w_bit")
    group = fields.integer("group_size", "q_group_size", default=128)
    fields.one_of(("gemm",), "version", "format", default="gemm")
    fields.one_of((True,), "zero_point", default=True)
    scheme = Scheme(
        method="awq",
        layout="awq",
        bits=bits,
        strategy=_by_group(group),
        group=max(group, 0),
        symmetric=False,
        values="qweight",
        scale="scales",
        ignored=fields.names("modules_to_not_convert"),
    )
    fields.finish(
        "backend do_fuse fuse_max_seq_len modules_to_fuse exllama_config sym dataset tokenizer"
        " pack_dtype lm_head meta model_seqlen batch_size damp_percent true_sequential desc_act"
        " cache_block_outputs act_group_aware max_input_length pad_token_id"
    )
    return scheme


def _by_group(group: int) -> Strategy:
    """``-1`` has each output share a scale."""
    if group != -1 and not 1 <= group <= 2**20:
        raise scheme_refusal(f"group_size is {group}, which makes no sense")
    return "channel" if group == -1 else "group"


def _fp8(fields: Stated) -> Scheme:
    fields.one_of(("e4m3", "float8_e4m3fn"), "fmt", default="e4m3")
    fields.one_of(("float", "float32", "ue8m0"), "scale_fmt", default="float")
    block = fields.take("weight_block_size")
    activations = fields.one_of(("dynamic", "static"), "activation_scheme", default="dynamic")
    scheme = Scheme(
        method="fp8",
        layout="plain",
        number="float",
        bits=8,
        strategy="tensor" if block is None else "block",
        block=(0, 0) if block is None else _block("weight_block_size", block),
        values="weight",
        scale="weight_scale_inv" if block is not None else "weight_scale",
        activations=f"fp8 ({activations})",
        ignored=fields.names("modules_to_not_convert", "ignored_layers"),
    )
    fields.finish("dequantize")
    return scheme


def _block(name: str, value: object) -> tuple[int, int]:
    sizes = value.split("x") if isinstance(value, str) else value
    if isinstance(sizes, list) and len(sizes) == 2:
        numbers = [int(each) if str(each).isdigit() and len(str(each)) < 7 else 0 for each in sizes]
        if min(numbers) > 0:
            return numbers[0], numbers[1]
    raise scheme_refusal(f"{name} must be two sizes, got {short(value)}")


_LAYOUTS: Mapping[str, Layout] = {
    "pack-quantized": "packed",
    "nvfp4-pack-quantized": "nvfp4",
}
_FORMATS = {
    "pack-quantized": (("int", 4), ("int", 8)),
    "int-quantized": (("int", 8),),
    "float-quantized": (("float", 8),),
    "naive-quantized": (("int", 8), ("float", 8)),
    "nvfp4-pack-quantized": (("float", 4),),
}


def _compressed_tensors(fields: Stated) -> Scheme:
    format_ = fields.take("format")
    if sparsity := fields.take("sparsity_config"):
        own = Stated(sparsity, "compressed-tensors: sparsity_config.")
        own.one_of(("dense",), "format", default="dense")
    if transforms := fields.take("transform_config"):
        Stated(transforms, "compressed-tensors: transform_config.").finish("")
    groups = fields.take("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise scheme_refusal(
            f"compressed-tensors: config_groups must be an object, got {short(groups)}"
        )
    ignored = fields.names("ignore")
    fields.finish(
        "quantization_status global_compression_ratio kv_cache_scheme version run_compressed"
        " dequantize use_optimized_inference"
    )
    schemes = [
        _config_group(Stated(group, f"compressed-tensors: config_groups.{name}."), format_, ignored)
        for name, group in groups.items()
    ]
    if any(scheme != schemes[0] for scheme in schemes):
        raise scheme_refusal(f"compressed-tensors: config_groups are {len(schemes)} that differ")
    return schemes[0]


def _config_group(fields: Stated, format_: object, ignored: frozenset[str]) -> Scheme:
    own = fields.take("format")
    weights = Stated(fields.take("weights"), "compressed-tensors: weights.")
    activations = _named_activations(fields.take("input_activations"))
    fields.finish("targets output_activations")
    chosen = own if own not in (None, "mixed-precision") else format_
    if not isinstance(chosen, str) or chosen not in _FORMATS:
        raise scheme_refusal(
            f"compressed-tensors: format is {short(chosen)}, which is not supported",
            "supported: " + ", ".join(_FORMATS),
        )
    kind = weights.one_of(("int", "float"), "type", default="int")
    bits = weights.one_of((4, 8), "num_bits", default=8)
    if (kind, bits) not in _FORMATS[chosen]:
        raise scheme_refusal(
            f"compressed-tensors: {bits} bits of type {kind} in {chosen} are not supported"
        )
    is_fp4 = chosen == "nvfp4-pack-quantized"
    strategy, group = _sharing(weights, is_fp4=is_fp4)
    block = weights.take("block_structure")
    orders = ("group", "dynamic", True, "weight", "static", False)
    order = weights.one_of(orders, "actorder", default=False)
    symmetric = weights.flag("symmetric", default=True)
    weights.one_of((False,), "dynamic", default=False)
    weights.finish("observer observer_kwargs scale_dtype zp_dtype")
    if kind == "float" and not symmetric:
        raise scheme_refusal(
            "compressed-tensors: weights.symmetric is false for numbers of type float"
        )
    return Scheme(
        method="compressed-tensors",
        layout=_LAYOUTS.get(chosen, "plain"),
        number=kind,
        bits=bits,
        strategy=strategy,
        group=group,
        block=_block("weights.block_structure", block) if strategy == "block" else (0, 0),
        symmetric=symmetric,
        act_order=order in orders[:3],
        values="weight_packed" if chosen in _LAYOUTS else "weight",
        scale="weight_scale",
        global_scale="weight_global_scale" if is_fp4 else "",
        divides=is_fp4,
        activations=activations,
        ignored=ignored,
    )


def _named_activations(stated: object) -> str:
    """What activations are rounded to, for people."""
    if not isinstance(stated, Mapping):
        return ""
    number = "int" if stated.get("type", "int") == "int" else "fp"
    return f"{number}{short(stated.get('num_bits', 8))}"


def _sharing(weights: Stated, *, is_fp4: bool) -> tuple[Strategy, int]:
    """What shares a scale, and the size of a group."""
    group = weights.take("group_size")
    strategies = ("tensor", "channel", "group", "block", "tensor_group")
    default = "tensor" if group in (None, 0) else "group"
    strategy = weights.one_of(strategies, "strategy", default=default)
    if is_fp4 != (strategy == "tensor_group") or (is_fp4 and group != 16):
        raise scheme_refusal(
            f"compressed-tensors: weights.strategy is {strategy}, group_size {short(group)}, which"
            " is not supported"
        )
    if strategy not in ("group", "tensor_group"):
        return strategy, 0
    if not isinstance(group, int) or not 1 <= group <= 2**20:
        raise scheme_refusal(f"compressed-tensors: weights.group_size is {short(group)}")
    return "group", group


def _modelopt(fields: Stated) -> Scheme:
    algorithms = ("fp8", "fp8_per_channel_per_token", "nvfp4", "w4a16_nvfp4")
    algorithm = fields.one_of(algorithms, "quant_algo")
    is_fp4 = "nvfp4" in algorithm
    group = fields.integer("group_size", default=16) if is_fp4 else 0
    if is_fp4 and group != 16:
        raise scheme_refusal(
            f"modelopt: group_size is {group}, which is not supported: nvfp4 has 16"
        )
    activations = "fp4" if algorithm == "nvfp4" else "fp8"
    scheme = Scheme(
        method="modelopt",
        layout="nvfp4" if is_fp4 else "plain",
        number="float",
        bits=4 if is_fp4 else 8,
        strategy="group" if is_fp4 else "channel" if "channel" in algorithm else "tensor",
        group=group,
        values="weight",
        scale="weight_scale",
        global_scale="weight_scale_2" if is_fp4 else "",
        activations="" if algorithm == "w4a16_nvfp4" else activations,
        ignored=fields.names("ignore", "exclude_modules"),
    )
    # What its groups say again follows from the algorithm.
    fields.finish("group_size kv_cache_quant_algo kv_cache_scheme config_groups producer version")
    return scheme


_READERS: Mapping[str, Callable[[Stated], Scheme]] = {
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
}

METHODS = tuple(_READERS)
