"""All drafts of a model in one call of the compiled kernels: bfloat16 activations on a CPU.

Of a small model, most of a draft's time is the way through Python between two of them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from twostroke.kernels.calls import LinearCall
from twostroke.kernels.library import Library
from twostroke.kernels.pass_calls import DraftCall
from twostroke.layers.attention.base import KernelCache
from twostroke.layers.compiled.decoder_pass import CompiledPass
from twostroke.layers.norm import RMSNorm


class CompiledDrafting:
    """Drafts for several requests together.

    Args:
        layers: The model's; no other pass of theirs may run at the same time.
        norm: Before the head.
        head: Its weights; what owns them is kept alive by the caller, as is the embedding.
        embedding: ``[vocabulary, hidden]``, or ``None``: the head's weight, as it is packed.
    """

    def __init__(
        self,
        layers: CompiledPass,
        norm: RMSNorm,
        head: LinearCall,
        embedding: Tensor | None,
        library: Library,
    ) -> None:
        self._layers = layers
        self._library = library
        self._vocabulary, self._hidden = head.outputs, head.inputs
        self._call = DraftCall(
            head=head,
            norm=norm.weight.data_ptr(),
            embedding=head.weight if embedding is None else embedding.data_ptr(),
            is_packed=embedding is None,
        )

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: KernelCache,
        rows: Tensor | None,
        lengths: Sequence[int],
    ) -> list[list[int]]:
        """The drafts of each request.

        Args:
            tokens: ``[tokens]``, int64: what each request lacks, one request after the other.
            positions: ``[tokens]``, int64.
            cache: The cache in a pass over these tokens; its table has room for the drafts.
            rows: Which of the tokens are the last of their requests; by default all.
            lengths: How many drafts each request gets, falling.
        """
        count = len(lengths)
        x = torch.empty(len(tokens), self._hidden, dtype=torch.bfloat16)
        drafts = torch.empty(lengths[0], count, dtype=torch.int64)
        scratch = torch.empty(4 * count + 1, dtype=torch.int64)
        logits, highest = torch.empty(count, self._vocabulary), torch.empty(count)
        wanted = torch.tensor(lengths, dtype=torch.int64)
        call = self._call
        call.pass_call = self._layers.prepare(x, positions, cache, rows)
        call.pass_call.seconds = None
        call.tokens, call.lengths = tokens.data_ptr(), wanted.data_ptr()
        call.num_requests, call.drafts = count, drafts.data_ptr()
        call.scratch, call.logits = scratch.data_ptr(), logits.data_ptr()
        call.highest = highest.data_ptr()
        self._library.draft(ctypes.byref(call))
        columns: list[list[int]] = drafts.T.tolist()
        return [column[:length] for column, length in zip(columns, lengths)]
