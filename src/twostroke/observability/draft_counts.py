"""How drafts fared, as reports show it."""

from __future__ import annotations

from typing import NamedTuple


class DraftCounts(NamedTuple):
    """Counts of a run.

    Attributes:
        accepted: Tokens that had been drafted.
        rejected: Drafts that were wrong.
        output_tokens: All tokens that were drawn.
    """

    accepted: int
    rejected: int
    output_tokens: int

    @property
    def acceptance(self) -> float | None:
        """Share of the drafts that were right; ``None`` without drafts."""
        drafted = self.accepted + self.rejected
        return self.accepted / drafted if drafted else None

    @property
    def tokens_per_pass(self) -> float:
        """A pass gives a request the drafts that it accepts and one token more."""
        return self.output_tokens / max(1, self.output_tokens - self.accepted)

    def rows(self) -> list[tuple[str, str]]:
        """Rows of a table; empty without drafts."""
        if self.acceptance is None:
            return []
        return [
            ("Draft acceptance rate (%)", f"{100 * self.acceptance:.2f}"),
            ("Tokens a pass", f"{self.tokens_per_pass:.2f}"),
        ]

    def fields(self) -> dict[str, float]:
        """Fields of a file; empty without drafts."""
        if self.acceptance is None:
            return {}
        return {
            "accepted_drafts": self.accepted,
            "rejected_drafts": self.rejected,
            "draft_acceptance": self.acceptance,
            "tokens_per_pass": self.tokens_per_pass,
        }
