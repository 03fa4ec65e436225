"""What trying to draft may cost: a small share of the time, whatever else is estimated wrongly."""

from __future__ import annotations

# Share of the time that drafts may lose, net of what others of them gain.
SHARE = 0.008
# Bounds of the balance, up and down, in steps without drafts: what all drafts may lose in advance.
MOST_BALANCE = 2.0
# The most that trials of new requests may owe, in steps without drafts.
MOST_OWED = 8.0
# The most that the share saves up for trials of new requests, in steps without drafts.
MOST_SAVED = 0.5
# The most that gains of other drafts save up for such trials, in steps without drafts.
MOST_GAINED = 32.0
# Steps from the first trial on loan to the second: a request asks again within eight steps, so that
# drafts are back 32 tokens after the first. Each further wait is twice the last one.
FIRST_WAIT = 24
# The longest wait, in steps: with it, a trial that costs 32 steps takes just the share above.
LONGEST_WAIT = 4096


class TrialBudget:
    """Seconds that drafts of doubtful use may still lose. Pure: time comes in results.

    Every step adds its share. Drafts take what they cost more than the tokens that they brought
    are worth, and bring what they gained. So where nothing comes true, drafting costs no more than
    that share of the time, however many requests come and go. And where the estimates say that
    drafts pay, but they do not, they end.

    But one answer, or one slow reading, says little of the next. So what is owed holds back a
    request that is new to drafting only for a while: it gets a loan. Each doubles the wait for
    the next, until drafts gain again. Requests of one step share a loan, since drafting
    delays them once, but not where each has its prompt read.

    Args:
        reads_prompts: Whether a request's first drafts cost more, since its prompt is read for it.

    Attributes:
        is_spent: The most allowed is lost. Until it is paid back, only trials may draft: the
            estimates that said drafts pay were wrong.
    """

    def __init__(self, *, reads_prompts: bool = False) -> None:
        self.is_spent = False
        self._reads_prompts = reads_prompts
        # Seconds that all drafts may still lose; below 0 they lost more.
        self._balance = 0.0
        # Seconds that new requests' trials may lose. Reading prompts for drafts counts here alone:
        # where the drafts of others gain, they pay that back.
        self._credit = 0.0
        # Seconds that drafts gained, net, since they last lost all that they had gained.
        self._gained = 0.0
        self._num_loans = 0  # since drafts gained
        self._steps_since_loan = 0
        # Seconds of trials not charged yet: in the step that is planned, and in the one before.
        self._reserved = 0.0
        self._reserved_before = 0.0

    def reserve(self, seconds: float, *, on_loan: bool = False) -> bool:
        """Whether the budget covers one more trial of this cost. Where nothing is owed, it does.

        Args:
            seconds: Estimate of what it loses if its drafts are wrong.
            on_loan: Where something is owed, the trial may have a loan.
        """
        if self._owes() and not (on_loan and self._lend()):
            return False
        self._reserved += seconds
        return True

    def add_step(self, loss: float, reading: float, plain: float) -> None:
        """Take in a step.

        Args:
            loss: Seconds that its drafts cost more than they gained; below 0 they gained.
            reading: Seconds that making drafts took longer than it mostly does.
            plain: Seconds of a step without drafts, of which it gives a share.
        """
        share, most = SHARE * plain, MOST_BALANCE * plain
        self._balance = max(-most, min(most, self._balance + share - loss))
        self.is_spent = self._balance <= (0.0 if self.is_spent else -most)
        credit = self._credit - loss - reading
        if credit < MOST_SAVED * plain:
            credit = min(credit + share, MOST_SAVED * plain)
        self._credit = max(-MOST_OWED * plain, min(MOST_GAINED * plain, credit))
        self._reserved, self._reserved_before = 0.0, self._reserved
        self._steps_since_loan += 1
        self._gained = max(0.0, self._gained - loss)
        if self._gained >= most:
            self._num_loans, self._gained = 0, 0.0

    def _owes(self) -> bool:
        """Whether trials have lost, or may lose by what is reserved, more than was saved."""
        return self._credit < self._reserved + self._reserved_before

    def _lend(self) -> bool:
        """Let a trial join the step's loan, or give it a new one, once the wait is over."""
        if self._can_join_loan():
            return True
        if self._steps_since_loan < self._wait():
            return False
        self._num_loans += 1
        self._steps_since_loan = 0
        return True

    def _can_join_loan(self) -> bool:
        """Whether this step has a loan already, which its trials share."""
        has_loan = self._num_loans > 0 and self._steps_since_loan == 0
        return has_loan and not self._reads_prompts

    def _wait(self) -> int:
        """Steps between the latest loan and the next."""
        if not self._num_loans:
            return 0
        return min(FIRST_WAIT << min(self._num_loans - 1, 16), LONGEST_WAIT)
