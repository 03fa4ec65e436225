"""What the inspector asks of the cost model: it implements ``questions.model_facts.StepCosts``."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

from twostroke.core.config import ModelOptions
from twostroke.core.errors import ConfigError
from twostroke.core.files import read_text
from twostroke.engine.executor import ExecutorInfo
from twostroke.model_spec.number_formats import cache_format, weight_format
from twostroke.model_spec.public_models import find_model
from twostroke.model_spec.spec import ModelSpec
from twostroke.questions.model_facts import Ceilings, ModelFacts, Probe, StepCost, StepWork
from twostroke.simulator.cost.configuration import Dtypes, Parallel
from twostroke.simulator.cost.cost_model import RooflineCostModel
from twostroke.simulator.cost.efficiencies import SHARED, load_efficiencies
from twostroke.simulator.cost.hardware_sheet import load_hardware
from twostroke.simulator.cost.measured_on import processor_name
from twostroke.simulator.cost.step_counts import StepCounts
from twostroke.timing.step_shape import StepShape

MAX_RATE = 1e20  # FLOP/s or bytes/s that a file may state
NO_SHEET = (
    "No sheet describes this device, so there is no estimate and no ceiling but what is measured."
)


class ShownCosts:
    """FLOPs, bytes and estimates of one model's steps.

    Args:
        estimates: On the device at hand; ``None`` where no sheet describes it.
    """

    def __init__(
        self, model: ModelSpec, dtypes: Dtypes, estimates: RooflineCostModel | None
    ) -> None:
        self._counts = StepCounts(model, dtypes)
        self._estimates = estimates

    @property
    def ceilings(self) -> Ceilings | None:
        model = self._estimates
        if model is None:
            return None
        sheet = model.hardware
        return Ceilings(
            device=sheet.title,
            flops=sheet.dense_flops[model.compute_format] * model.ranks,
            bandwidth=sheet.memory_bandwidth * model.ranks,
            format=model.compute_format,
            cache_bytes=sheet.cache_bytes,
            devices=model.ranks,
            source=f"hardware sheet {sheet.name}",
        )

    def cost(self, work: StepWork) -> StepCost:
        shape = StepShape(
            work.requests, work.context, work.chunks, work.sampled, drafts=work.drafts
        )
        flops, moved = self._counts.flops(shape), self._counts.bytes(shape)
        if self._estimates is None:
            return StepCost(flops, moved)
        made = self._estimates.step(shape)
        return StepCost(flops, moved, made.seconds, made.low, made.high, made.binding)


def facts_of_engine(
    options: ModelOptions,
    info: ExecutorInfo,
    make_probe: Callable[[], Probe],
    *,
    gpu: str = "",
    efficiencies: Path | None = None,
) -> ModelFacts:
    """Facts on a loaded model, and on the device that it runs on.

    Args:
        gpu: What the device calls itself, where it is no processor.
        efficiencies: A file of ``twostroke calibrate``.

    Raises:
        ModelLoadError: The model's description cannot be read.
        ConfigError: A number format is unknown, or the file cannot be used.
    """
    model = find_model(options.model)
    stored = model.format if options.dtype == "auto" else weight_format(options.dtype).name
    weights = options.quantization or stored
    dtypes = Dtypes(weights=weights, kv_cache=info.kv_cache_dtype or "auto")
    sheet = "cpu" if info.device.startswith("cpu") else sheet_of_gpu(gpu)
    costs = shown_costs(model, dtypes, sheet, efficiencies)
    notes = []
    if efficiencies is not None:
        notes.append(f"The estimates are calibrated on {_described(efficiencies)}.")
    elif sheet == "cpu":
        notes.append(
            "The estimates are for the sheet's processor; twostroke calibrate fits them to this"
            " one, and --inspect-efficiencies takes its file."
        )
    return ModelFacts(
        name=options.model,
        spec=model,
        weights=weight_format(weights).name,
        kv_cache=cache_format(dtypes.kv_cache).name,
        costs=costs,
        calibrated=None if efficiencies is None else measured_ceilings(efficiencies),
        machine=gpu or processor_name(),
        make_probe=make_probe,
        notes=notes if costs.ceilings else [*notes, NO_SHEET],
    )


def facts_of_simulation(
    name: str, estimates: RooflineCostModel, *, notes: Sequence[str] = ()
) -> ModelFacts:
    """Facts on a simulated deployment, whose steps are what the cost model says."""
    dtypes = Dtypes(weights=estimates.weights.name, kv_cache=estimates.cache_format.name)
    return ModelFacts(
        name=name,
        spec=estimates.model,
        weights=estimates.weights.name,
        kv_cache=estimates.cache_format.name,
        costs=ShownCosts(estimates.model, dtypes, estimates),
        ranks=estimates.ranks,
        measured=False,
        notes=notes,
    )


def facts_of_recording(model: str, gpu: str | None, efficiencies: Path | None = None) -> ModelFacts:
    """Facts on a recorded run; the caller says what ran where, which recordings do not.

    Args:
        gpu: A hardware sheet by name or path; ``None``: no ceilings and no estimates.
        efficiencies: A file of ``twostroke calibrate``.

    Raises:
        ConfigError: Unknown hardware.
        ModelLoadError: Unknown model.
    """
    spec = find_model(model)
    weights = weight_format(spec.format).name
    costs = shown_costs(spec, Dtypes(weights=weights), gpu, efficiencies)
    said = f"That {model} ran here{f' on {gpu}' if gpu else ''} was said when it was opened."
    return ModelFacts(
        name=model,
        spec=spec,
        weights=weights,
        kv_cache=cache_format("auto").name,
        costs=costs,
        calibrated=None if efficiencies is None else measured_ceilings(efficiencies),
        notes=[said, *(() if costs.ceilings else (NO_SHEET,))],
    )


def shown_costs(
    model: ModelSpec, dtypes: Dtypes, sheet: str | None, efficiencies: Path | None = None
) -> ShownCosts:
    """Costs on a device by the name of its sheet; without one, counts alone."""
    if sheet is None:
        return ShownCosts(model, dtypes, None)
    hardware = load_hardware(sheet)
    fitted = load_efficiencies(hardware.name, efficiencies, link=hardware.link_kind)
    return ShownCosts(model, dtypes, RooflineCostModel(hardware, model, Parallel(), dtypes, fitted))


def measured_ceilings(path: Path) -> Ceilings | None:
    """How fast a machine was when it was calibrated; ``None`` if the file does not say.

    Raises:
        ConfigError: The file cannot be read, or holds what no calibration writes.
    """
    load_efficiencies(SHARED, path)
    speed = tomllib.loads(read_text(path)).get("speed")
    if speed is None:
        return None
    rates = [
        rate
        for name in ("flops", "bandwidth")
        if isinstance(speed, dict)
        and isinstance(rate := speed.get(name), float)
        and 0 < rate < MAX_RATE
    ]
    if len(rates) != 2:
        raise ConfigError(
            f"{path}: [speed] must have flops and bandwidth, above 0",
            hint="leave it as twostroke calibrate wrote it",
        )
    return Ceilings(
        device=_described(path),
        flops=rates[0],
        bandwidth=rates[1],
        source=f"both by PyTorch, when {path.name} was made",
    )


def _described(path: Path) -> str:
    measured = load_efficiencies(SHARED, path).measured
    return measured.describe() if measured else path.name


# Words in what a GPU calls itself, and its sheet; the first that fits counts.
_GPUS = (
    ("h200", "h200"),
    ("gb200", "gb200"),
    ("b200", "b200"),
    ("h100 pcie", "h100-pcie"),
    ("h100", "h100-sxm"),
    ("a100 40gb", "a100-40gb-sxm"),
    ("a100 80gb", "a100-80gb-sxm"),
    ("l40s", "l40s"),
    ("l4", "l4"),
    ("a10", "a10"),
    ("4090", "rtx-4090"),
    ("5090", "rtx-5090"),
    ("mi300x", "mi300x"),
    ("mi325x", "mi325x"),
)


def sheet_of_gpu(name: str) -> str | None:
    """The sheet for what a GPU calls itself, such as ``NVIDIA H200``; ``None``: there is none."""
    words = set(name.lower().replace("-", " ").split())
    return next((sheet for wanted, sheet in _GPUS if words.issuperset(wanted.split())), None)
