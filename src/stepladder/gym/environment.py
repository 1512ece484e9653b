"""The environment: one question an episode; observations are what the policy reads, actions what it writes.

In: the arguments of `game.GameConfig`. Out: a `gymnasium.Env`. Made by `gymnasium.make("stepladder/Search-v0", ...)`.
"""

from typing import Any, ClassVar

import gymnasium

from stepladder.gym.game import Game
from stepladder.gym.seat import Seat


class SearchEnv(gymnasium.Env[str, str]):
    """Answer questions by searching.

    `info` has `trajectory` (the episode so far), `question_id`, `kind` and `problem` of the action, the `passages` that
    it found, `stop` (a `StopReason`, None while the episode goes on), `step_score` where steps are scored, and `em` and
    `f1` at the end.
    """

    # Text has no rate; Gymnasium's checker warns where none is named.
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 1}  # type: ignore[misc]

    def __init__(self, render_mode: str | None = None, **arguments: Any) -> None:
        """`arguments` are those of `GameConfig`."""
        self.render_mode = render_mode
        self.game = Game(arguments)
        self.seat = Seat(self.game, render_mode)
        self.observation_space, self.action_space = self.game.spaces()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin with a question: `options={"question": ...}` (an id or a `Question`), or one that is drawn."""
        super().reset(seed=seed)
        (outcome,) = self.game.play([self.seat.start(self.np_random, options)])
        turn = self.seat.arrive(outcome)
        return turn.observation, turn.info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take in what the policy wrote; it counts up to the agent's first stop string."""
        move = self.seat.act(action)
        try:
            (outcome,) = self.game.play([move])
        except BaseException:
            self.seat.leave()
            raise
        turn = self.seat.arrive(outcome)
        return turn.observation, self.game.reward.of(turn), turn.terminated, turn.truncated, turn.info()

    def render(self) -> str | None:
        """The episode so far as text; None without a render mode."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() shows nothing without a render mode: make the environment with 'ansi'")
            return None
        return self.seat.transcript()

    def close(self) -> None:
        """Let go of the index."""
        self.game.close()
