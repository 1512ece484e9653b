"""The environment: one question per episode; observations are the policy's prompt, actions its generated text.

In: the fields of `env_config.EnvConfig`. Out: a `gymnasium.Env`, made by `gymnasium.make("stepladder/Search-v0", ...)`.
"""

from typing import Any, ClassVar

import gymnasium

from stepladder.gym.env_config import EnvBackend
from stepladder.gym.episode_slot import EpisodeSlot


class SearchEnv(gymnasium.Env[str, str]):
    """Answer questions by searching.

    `info` has `trajectory` (the episode so far), `question_id`, `kind` and `problem` of the action, the retrieved
    `passages`, `stop` (a `StopReason`, None during the episode), `step_score` if steps are scored, and `em` and `f1` at
    the end.
    """

    # Text has no frame rate, but Gymnasium's checker warns without one.
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 1}  # type: ignore[misc]

    def __init__(self, render_mode: str | None = None, **arguments: Any) -> None:
        """`arguments` are the fields of `EnvConfig`."""
        self.render_mode = render_mode
        self.backend = EnvBackend(arguments)
        self.slot = EpisodeSlot(self.backend, render_mode)
        self.observation_space, self.action_space = self.backend.spaces()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode with `options={"question": ...}` (an id or a `Question`), or with a random question."""
        super().reset(seed=seed)
        (outcome,) = self.backend.run([self.slot.start(self.np_random, options)])
        result = self.slot.finish_step(outcome)
        return result.observation, result.info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Apply the policy's text, which is truncated after the agent's first stop string."""
        pending = self.slot.act(action)
        try:
            (outcome,) = self.backend.run([pending])
        except BaseException:
            self.slot.abandon()
            raise
        result = self.slot.finish_step(outcome)
        return (
            result.observation,
            self.backend.reward.of(result),
            result.terminated,
            result.truncated,
            result.info(),
        )

    def render(self) -> str | None:
        """The episode so far as text; None without a render mode."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() needs a render mode: make the environment with render_mode='ansi'")
            return None
        return self.slot.transcript()

    def close(self) -> None:
        """Close the index."""
        self.backend.close()
