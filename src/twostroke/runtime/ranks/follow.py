"""A rank that follows: ``python -m twostroke.runtime.ranks.follow FD``.

Started by the first one, which hands it one end of a pair of sockets.
"""

from __future__ import annotations

import logging
import signal
import socket
import sys
from collections.abc import Iterator

import msgspec
import torch

from twostroke.checkpoints.open_checkpoint import find_checkpoint
from twostroke.core.errors import EngineDeadError, EngineError, ErrorMessage, TwostrokeError
from twostroke.core.freed_memory import share_heaps
from twostroke.distributed.ranks import Ranks
from twostroke.engine.process.frames import encode_frame, receive_frame
from twostroke.kernels.library import load_library
from twostroke.layers.attention.base import AttentionBackend
from twostroke.models.decoder import Decoder
from twostroke.models.support import read_runnable
from twostroke.runtime.backends import attention_backend
from twostroke.runtime.caches.allocate import allocate_target
from twostroke.runtime.device import as_current, memory_error
from twostroke.runtime.kv_tensors import KVTensors
from twostroke.runtime.ranks.messages import (
    AllocateBlocks,
    BlocksAllocated,
    CopyBlocks,
    MakeLogits,
    RankIsHere,
    RankLoaded,
    RankOrder,
    RankRefused,
    RunPass,
    StartRank,
    ZeroSlots,
    numbers_of,
)
from twostroke.runtime.ranks.processes import PASS_SECONDS
from twostroke.runtime.weights import load_model

logger = logging.getLogger("twostroke.runtime.ranks.follow")


class Follower:
    """One rank's share of the model and of the KV cache."""

    def __init__(self, start: StartRank, ranks: Ranks, model: Decoder) -> None:
        self._start, self._ranks, self._model = start, ranks, model
        self._kv: KVTensors | None = None
        self._backend: AttentionBackend | None = None

    def carry_out(self, order: RankOrder) -> None:
        model, device = self._model, self._model.device
        if isinstance(order, AllocateBlocks):
            self._kv = allocate_target(self._start.config, model, order.num_blocks)
            self._backend = attention_backend(model.spec, self._kv)
            return
        if isinstance(order, MakeLogits):
            hidden = torch.empty(
                order.num_rows, model.spec.hidden_size, dtype=model.dtype, device=device
            )
            model.logits(self._ranks.from_first(hidden))
            return
        assert self._kv is not None and self._backend is not None  # they come first
        if isinstance(order, RunPass):
            attention = self._backend.prepare(order.tables.metadata(device))
            token_ids, positions = (
                numbers_of(data, device) for data in (order.token_ids, order.positions)
            )
            rows = None if order.rows is None else numbers_of(order.rows, device)
            model.forward(token_ids, positions, attention, rows)
        elif isinstance(order, CopyBlocks):
            self._kv.copy_blocks(order.copies)
        elif isinstance(order, ZeroSlots):
            self._kv.zero_slots(numbers_of(order.slots, device, order.groups))
        else:
            slots = numbers_of(order.slots, device, order.groups)
            self._ranks.all_true(bool(self._kv.are_finite(slots)))


def main(descriptor: int) -> None:
    """Follow the first rank at the other end of an inherited socket, until it closes that."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    share_heaps()
    with socket.socket(fileno=descriptor) as connection:
        data = receive_frame(connection)
        if data is None:
            return
        start = msgspec.msgpack.decode(data, type=StartRank)
        logging.basicConfig(level=start.log_level)
        try:
            follower = _load(start, connection)
        except TwostrokeError as error:
            connection.sendall(encode_frame(RankRefused(ErrorMessage.of(error))))
            return
        connection.sendall(encode_frame(RankLoaded()))
        with torch.inference_mode(), as_current(torch.device(start.device)):
            try:
                for order in _orders(connection):
                    follower.carry_out(order)
                    if isinstance(order, AllocateBlocks):
                        connection.sendall(encode_frame(BlocksAllocated()))
            except EngineDeadError as error:
                logger.error("rank %d ends: %s", start.rank, error)
            except Exception as error:  # the others notice that it has gone
                logger.exception("rank %d ends", start.rank)
                failed = memory_error(error) or EngineError(f"{type(error).__name__}: {error}")
                connection.sendall(encode_frame(RankRefused(ErrorMessage.of(failed))))


def _load(start: StartRank, connection: socket.socket) -> Follower:
    config, device = start.config, torch.device(start.device)
    if device.type == "cpu" and (library := load_library()) is not None:
        library.set_num_threads(torch.get_num_threads())
    checkpoint = find_checkpoint(config.model.model, config.model.revision)
    spec = read_runnable(checkpoint)
    connection.sendall(encode_frame(RankIsHere()))
    size = config.model.tensor_parallel_size
    ranks = Ranks.join(start.file, start.rank, size, PASS_SECONDS, device)
    model = load_model(
        checkpoint,
        spec,
        config.model.dtype,
        device,
        start.max_model_len,
        config.model.quantization,
        kv_format=config.cache.kv_format,
        scores_pairs=start.scores_pairs,
        group=ranks,
    )
    return Follower(start, ranks, model)


def _orders(connection: socket.socket) -> Iterator[RankOrder]:
    decoder: msgspec.msgpack.Decoder[RankOrder] = msgspec.msgpack.Decoder(RankOrder)
    while (data := receive_frame(connection)) is not None:
        yield decoder.decode(data)


if __name__ == "__main__":
    main(int(sys.argv[1]))
