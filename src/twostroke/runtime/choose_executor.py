"""Which executor runs a checkpoint: one with a KV cache for decoders, one without for encoders."""

from __future__ import annotations

from twostroke.checkpoints.checkpoint import Checkpoint
from twostroke.constraints.compiler import GrammarCompiler
from twostroke.core.config import EngineConfig
from twostroke.core.errors import ConfigError
from twostroke.engine.adapters.registry import Adapters
from twostroke.engine.executor import Executor
from twostroke.model_spec.vectors.encoder_spec import is_encoder
from twostroke.observability.profile import NO_PROFILE, Profiler
from twostroke.runtime.loading import load_torch_executor


def load_executor(
    config: EngineConfig,
    checkpoint: Checkpoint,
    *,
    profiler: Profiler = NO_PROFILE,
    grammars: GrammarCompiler | None = None,
    adapters: Adapters | None = None,
) -> Executor:
    """Load a checkpoint; raises as ``load_torch_executor``."""
    if is_encoder(checkpoint.config):
        from twostroke.runtime.vectors.encoder_executor import EncoderExecutor

        if config.needs_tiers:
            raise ConfigError(
                "encoders have no KV cache, so --preemption swap, --kv-host-memory, --kv-disk,"
                " --prefill-engines and --role mean nothing",
                hint="leave them out",
            )
        if config.adapters.wanted:
            raise ConfigError(
                "encoders take no LoRA adapters", hint="leave out --lora and --enable-lora"
            )
        if config.model.tensor_parallel_size > 1:
            raise ConfigError(
                "encoders are not divided: --tensor-parallel-size does not work with them",
                hint="leave it out, or give --data-parallel-size",
            )
        return EncoderExecutor.load(config, checkpoint, profiler=profiler)
    return load_torch_executor(
        config, checkpoint, profiler=profiler, grammars=grammars, adapters=adapters
    )
