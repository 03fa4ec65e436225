"""How a model runs: number formats, devices that share it, what drafts."""

from __future__ import annotations

from dataclasses import dataclass

from twostroke.model_spec.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """How a model is split over devices (``expert_parallel``).

    Attributes:
        tensor: Devices that share every layer.
        data: Groups of these, each with requests of its own.
        pipeline: Groups of all those, each with layers of its own.
        expert: Whether devices have whole experts instead of parts of each.
    """

    tensor: int = 1
    data: int = 1
    pipeline: int = 1
    expert: bool = False

    @property
    def num_devices(self) -> int:
        return self.tensor * self.data * self.pipeline

    @property
    def splits_tensors_only(self) -> bool:
        return self.data == self.pipeline == 1 and not self.expert

    @property
    def expert_devices(self) -> int:
        """Devices that a layer's experts are spread over."""
        return self.tensor * self.data

    @property
    def parts_of_expert(self) -> int:
        """Devices that each of a layer's experts is split over."""
        return 1 if self.expert else self.expert_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Dtypes:
    """Formats of weights and KV cache; ``auto`` is what the checkpoint states, and bfloat16."""

    weights: str = "auto"
    kv_cache: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """What makes drafts, one by one. Without a model, quoting costs nothing.

    Attributes:
        model: A smaller model.
        share: Or this share of the target's own layers.
        reads_prompts: Whether that share has keys and values of its own, so prompts go through it.
    """

    model: ModelSpec | None = None
    share: float = 0.0
    reads_prompts: bool = False
