"""What trying to draft may cost: a small share of the time, whatever else is estimated wrongly."""

from __future__ import annotations

# Share of the time that drafts may lose, net of what others of them gain.
SHARE = 0.008
# All in plain steps: the most that drafts may lose or gain in advance, the most that new requests
# may owe, and the most that the share and gains of other drafts may save up for them.
MOST_STEPS, MOST_OWED, MOST_SAVED, MOST_GAINED = 2.0, 8.0, 0.5, 32.0
# Steps from one trial on loan to the next: at first, and at most; each wait is twice the last one.
# A request asks again within eight steps, so that drafts are back 32 tokens after the first loan.
# With the longest wait, a trial that costs 32 steps takes just the share above.
FIRST_WAIT, LONGEST_WAIT = 24, 4096


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
        self._balance = 0.0
        # The same, less what reading prompts cost a draft model: only requests that are new to
        # drafting are held back by that, for where the others gain, they will pay it back.
        self._credit = 0.0
        self._num_loans, self._since_loan = 0, 0  # since drafts gained
        self._gained = 0.0  # net, since drafts last lost all that they had gained
        # Of trials in the step that is planned, and in the one before: both are not charged yet.
        self._reserved, self._reserved_before = 0.0, 0.0

    def reserve(self, seconds: float, *, on_loan: bool = False) -> bool:
        """Whether the budget covers one more trial of this cost. Where nothing is owed, it does.

        Args:
            seconds: Estimate of what it loses if its drafts are wrong.
            on_loan: Something is owed, but the request may begin for all that, now and then.
        """
        if self._credit < self._reserved + self._reserved_before:
            joins = self._since_loan == 0 < self._num_loans and not self._reads_prompts
            if not on_loan or not (joins or self._since_loan >= self._wait()):
                return False
            if not joins:
                self._num_loans, self._since_loan = self._num_loans + 1, 0
        self._reserved += seconds
        return True

    def add_step(self, loss: float, reading: float, plain: float) -> None:
        """Take in a step.

        Args:
            loss: Seconds that its drafts cost more than they gained; below 0 they gained.
            reading: Seconds that making drafts took longer than it mostly does.
            plain: Seconds of a step without drafts, of which it gives a share.
        """
        share, most = SHARE * plain, MOST_STEPS * plain
        self._balance = max(-most, min(most, self._balance + share - loss))
        credit = self._credit - loss - reading
        if credit < MOST_SAVED * plain:
            credit = min(credit + share, MOST_SAVED * plain)
        self._credit = max(-MOST_OWED * plain, min(MOST_GAINED * plain, credit))
        self.is_spent = self._balance <= (0.0 if self.is_spent else -most)
        self._reserved, self._reserved_before = 0.0, self._reserved
        self._since_loan += 1
        self._gained = max(0.0, self._gained - loss)
        if self._gained >= most:
            self._num_loans, self._gained = 0, 0.0

    def _wait(self) -> int:
        """Steps between the latest loan and the next."""
        if not self._num_loans:
            return 0
        return min(FIRST_WAIT << min(self._num_loans - 1, 16), LONGEST_WAIT)
