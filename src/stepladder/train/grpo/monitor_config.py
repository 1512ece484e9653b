"""Settings of the GRPO monitors: which alarms there are, and their limits."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, PositiveFloat

from stepladder.core.config import Config

Share = Annotated[float, Field(gt=0, lt=1)]


class MonitorConfig(Config):
    """Limits of the alarms; None switches an alarm off. `monitors.py` documents how each limit is applied.

    Most defaults are relative to the start of the run, and so suit models of any size.
    """

    #: Whether an alarm ends the run.
    stop: bool = True
    #: Updates per window: the mean of the latest window is compared with that of an earlier one.
    window: int = Field(default=5, ge=3)
    #: A change between two windows counts only above this many standard errors.
    noise: PositiveFloat = 5.0
    #: format_collapse: the largest drop of the share of valid transcripts below the first window.
    valid_drop: Share | None = 0.25
    #: format_collapse: the smallest share of valid transcripts, for a run that started at twice as many or more.
    valid_floor: Share | None = 0.3
    #: reward_hacking: the largest drop of F1 below its best window while step scores rise.
    f1_drop: Share | None = 0.05
    #: reward_hacking: the rise of step scores, from 0 to 1, that makes such a drop suspicious.
    step_score_rise: Share = 0.02
    #: reward_hacking: the largest rise of the share of repeated or empty steps above the first window.
    repeated_rise: Share | None = 0.25
    #: entropy_collapse: the smallest entropy, as a share of the first window's.
    entropy_share: Share | None = 0.2
    #: kl_blow_up: the highest KL divergence from the reference, in nats per token.
    kl: PositiveFloat | None = 1.0
    #: no_searches: the fewest searches per episode, as a share of the first window's.
    searches_share: Share | None = 0.3
    #: endless: the largest share of episodes that end at the step limit.
    step_limit: Share | None = 0.5
    #: endless: the most searches per episode, on average; depends on the agent and its step limit.
    most_searches: PositiveFloat | None = None
    #: logprob_mismatch: the largest mean difference between a token's log-prob in the engine and in the trainer.
    logprob_gap: PositiveFloat | None = 0.1

    def unused(self) -> Mapping[str, str]:
        """`step_score_rise` is a part of the alarm for a drop of F1."""
        return {"step_score_rise": "with f1_drop: null"} if self.f1_drop is None else {}
