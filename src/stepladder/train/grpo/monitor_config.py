"""What can be set about the guards of reinforcement learning: which alarms there are, and when they are raised."""

from typing import Annotated

from pydantic import Field, PositiveFloat

from stepladder.core.config import Config

Share = Annotated[float, Field(gt=0, lt=1)]


class GuardConfig(Config):
    """When a run is in trouble. A limit of None switches its alarm off. `train/guards.py` says how each is applied.

    The defaults are relative to how the run began wherever that makes sense, and so suit models of any size.
    """

    #: Whether an alarm ends the run.
    stop: bool = True
    #: Updates whose mean is taken: the latest ones are compared with as many earlier ones.
    window: int = Field(default=5, ge=3)
    #: Standard errors that a change between two windows must exceed; what is smaller may be chance.
    noise: PositiveFloat = 5.0
    #: format_collapse: how far the share of valid transcripts may fall below the first window's.
    valid_drop: Share | None = 0.25
    #: format_collapse: the least share of valid transcripts, for a run that began at twice as many or more.
    valid_floor: Share | None = 0.3
    #: reward_hacking: how far F1 may fall below its best window while step scores rise.
    f1_drop: Share | None = 0.05
    #: reward_hacking: the rise of step scores, from 0 to 1, that makes such a fall suspicious.
    step_score_rise: Share = 0.02
    #: reward_hacking: how far the share of repeated or empty steps may rise above the first window's.
    repeated_rise: Share | None = 0.25
    #: entropy_collapse: the least entropy, as a share of the first window's.
    entropy_share: Share | None = 0.2
    #: kl_blow_up: the highest KL a token to where the policy began, in nats.
    kl: PositiveFloat | None = 1.0
    #: no_searches: the fewest searches an episode, as a share of the first window's.
    searches_share: Share | None = 0.3
    #: endless: the largest share of episodes that may end at the step limit.
    step_limit: Share | None = 0.5
    #: endless: the most searches an episode, on average; depends on the agent and its step limit.
    most_searches: PositiveFloat | None = None
    #: logprob_mismatch: the largest mean difference between a token's log-prob in the engine and in the trainer.
    logprob_gap: PositiveFloat | None = 0.1
