"""The adapters of a model that are in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from twostroke.checkpoints.adapters.peft_folder import read_adapter
from twostroke.engine.adapters.registry import LoadedAdapter
from twostroke.layers.low_rank import Additions
from twostroke.models.decoder import Decoder
from twostroke.models.language_model import LanguageModel
from twostroke.runtime.adapters.adapted_pass import AdaptedPass
from twostroke.runtime.adapters.load import check_room, make_additions, match_places
from twostroke.runtime.adapters.places import AdapterPlaces
from twostroke.runtime.adapters.self_check import check_changes, check_merged


class AdapterStore:
    """Implements ``AdapterHolder``. The engine's thread calls everything.

    Args:
        places: Those of ``model``.
    """

    def __init__(self, model: Decoder, places: AdapterPlaces) -> None:
        self.model, self._places = model, places
        self._additions: dict[str, Additions] = {}

    def load(self, path: str, max_rank: int, max_bytes: int) -> LoadedAdapter:
        stored = read_adapter(Path(path), max_rank)
        matched, model = match_places(stored, self._places), self.model
        check_room(matched, model.dtype, model.device, max_bytes)
        additions = make_additions(matched, model.dtype, model.device, model.kernels)
        check_merged(matched, additions, model)
        check_changes(additions, self._places, model)
        self._additions[stored.digest] = additions
        nbytes = sum(one.nbytes for one in additions.values())
        return LoadedAdapter(stored.digest, stored.rank, nbytes)

    def drop(self, digest: str) -> None:
        self._additions.pop(digest, None)

    def adapted(
        self, model: LanguageModel, digests: Sequence[str], counts: Sequence[int]
    ) -> LanguageModel:
        """The model for a pass over shares of so many tokens each.

        Args:
            model: The pass's; returned as it is where no share has an adapter.
            digests: The adapter of each share; empty: none.
        """
        distinct = [digest for digest in dict.fromkeys(digests) if digest]
        if not distinct:
            return model
        places = {digest: index for index, digest in enumerate(distinct)}
        of_share = torch.tensor([places.get(digest, -1) for digest in digests])
        owners = of_share.repeat_interleave(torch.tensor(counts)).to(self.model.device)
        additions = [self._additions[digest] for digest in distinct]
        return AdaptedPass(self.model, self._places.additions, additions, owners)
