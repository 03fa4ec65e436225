"""The adapters of a model that are in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from twostroke.checkpoints.adapters.peft_folder import StoredAdapter, read_adapter
from twostroke.engine.adapters.registry import LoadedAdapter
from twostroke.layers.compiled.decoder_pass import CompiledAdditions
from twostroke.layers.low_rank import Additions, compile_additions
from twostroke.models.decoder import Decoder
from twostroke.models.language_model import LanguageModel
from twostroke.runtime.adapters.adapted_pass import AdaptedPass
from twostroke.runtime.adapters.load import check_room, make_additions, match_places
from twostroke.runtime.adapters.places import AdapterPlaces
from twostroke.runtime.adapters.self_check import check_changes, check_merged
from twostroke.sampling.transfer import moved


class AdapterStore:
    """Implements ``AdapterHolder``. The engine's thread calls everything.

    Args:
        places: Those of ``model``.
    """

    def __init__(self, model: Decoder, places: AdapterPlaces) -> None:
        self.model, self._places = model, places
        self._additions: dict[str, Additions] = {}
        # Contents that passed the self-check once: one that was dropped returns without it, since
        # any request may make it return.
        self._checked: set[str] = set()
        # What the last pass's adapters add, for the compiled pass: mostly the next one's, too.
        self._compiled: tuple[Sequence[str], CompiledAdditions | None] = ((), None)

    def load(self, path: str, max_rank: int, max_bytes: int) -> LoadedAdapter:
        stored = read_adapter(Path(path), max_rank)
        if (there := self._additions.get(stored.digest)) is not None:  # under another name
            return _loaded(stored, there)
        matched, model = match_places(stored, self._places), self.model
        check_room(matched, model.dtype, model.device, max_bytes)
        additions = make_additions(matched, model.dtype, model.device, model.kernels)
        if stored.digest not in self._checked:
            check_merged(matched, additions, model)
            check_changes(additions, self._places, model)
            self._checked.add(stored.digest)
        self._additions[stored.digest] = additions
        return _loaded(stored, additions)

    def drop(self, digest: str) -> None:
        self._additions.pop(digest, None)
        self._compiled = ((), None)

    def adapted(
        self, model: LanguageModel, digests: Sequence[str], counts: Sequence[int]
    ) -> LanguageModel:
        """The model for a pass over shares of so many tokens each.

        Args:
            model: The pass's; returned as it is where no share has an adapter.
            digests: The adapter of each share; empty: none.
        """
        if not (distinct := sorted({digest for digest in digests if digest})):
            return model
        places = {digest: index for index, digest in enumerate(distinct)}
        of_share = torch.tensor([places.get(digest, -1) for digest in digests])
        owners = moved(of_share.repeat_interleave(torch.tensor(counts)), self.model.device)
        additions = [self._additions[digest] for digest in distinct]
        compiled = self._compile(distinct, additions)
        return AdaptedPass(self.model, self._places.additions, additions, owners, compiled)

    def _compile(
        self, digests: Sequence[str], additions: Sequence[Additions]
    ) -> CompiledAdditions | None:
        if self.model.compiled_pass is None:
            return None
        if self._compiled[0] != digests:
            num_layers = self.model.spec.num_layers
            self._compiled = (digests, compile_additions(num_layers, additions))
        return self._compiled[1]


def _loaded(stored: StoredAdapter, additions: Additions) -> LoadedAdapter:
    nbytes = sum(one.nbytes for one in additions.values())
    return LoadedAdapter(stored.digest, stored.rank, nbytes)
