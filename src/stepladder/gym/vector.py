"""Many environments that step together: one batch of searches a step, and one of scores.

In: the number of environments and the arguments of `game.GameConfig`. Out: a `gymnasium.vector.VectorEnv`. Each
environment does what `SearchEnv` would do with the same seed; data, index and scorer are there once. An episode that
ended is followed by the next one in the step after (`AutoresetMode.NEXT_STEP`), whatever the action is.
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from stepladder.core.errors import StepladderError
from stepladder.core.requests import Algorithm
from stepladder.gym.environment import SearchEnv
from stepladder.gym.game import Game
from stepladder.gym.seat import Seat
from stepladder.gym.turn import Turn

Observations = tuple[str, ...]
Array = np.ndarray[Any, Any]


class SearchVectorEnv(VectorEnv[Observations, Iterable[str], Array]):
    """`SearchEnv`, many times."""

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc] # a class variable there too
        **SearchEnv.metadata,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(self, num_envs: int = 1, render_mode: str | None = None, **arguments: Any) -> None:
        """`arguments` are those of `GameConfig`."""
        if num_envs < 1:
            raise StepladderError(f"num_envs is {num_envs}; at least 1 environment is needed")
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.game = Game(arguments)
        self.seats = [Seat(self.game, render_mode) for _ in range(num_envs)]
        self.single_observation_space, self.single_action_space = self.game.spaces()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._randoms: list[np.random.Generator | None] = [None] * num_envs
        self._observations = [""] * num_envs
        #: Environments whose next step begins an episode.
        self._over = np.zeros(num_envs, dtype=np.bool_)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        """Begin everywhere, or where `options["reset_mask"]` is true.

        An integer seeds environment i with `seed + i`; a list has a seed for each. Further options are those of
        `SearchEnv`.
        """
        seeds = [seed + number for number in range(self.num_envs)] if isinstance(seed, int) else seed
        if seeds is not None and len(seeds) != self.num_envs:
            raise StepladderError(f"found {len(seeds)} seeds for {self.num_envs} environments")
        others = dict(options or {})
        chosen = self._chosen(others.pop("reset_mask", None))
        for number in chosen:
            if seeds is not None and seeds[number] is not None:
                self._randoms[number], _ = np_random(seeds[number])
        turns = self._play({number: self._start(number, others) for number in chosen})
        self._over[chosen] = False
        return tuple(self._observations), self._infos(turns)

    def step(self, actions: Iterable[str]) -> tuple[Observations, Array, Array, Array, dict[str, Any]]:
        """One action an environment, in their order."""
        written = [actions] if isinstance(actions, str) else list(actions)
        if len(written) != self.num_envs:
            raise StepladderError(f"expected one action for each of {self.num_envs} environments, found {len(written)}")
        # Every action is looked at before anything begins, so that a wrong one changes nothing.
        acting = {number: self.seats[number].act(written[number]) for number in np.flatnonzero(~self._over).tolist()}
        starting = {number: self._start(number, None) for number in np.flatnonzero(self._over).tolist()}
        turns = self._play(dict(sorted((acting | starting).items())))
        rewards = [self.game.reward.of(turn) for turn in turns.values()]  # 0 where an episode has just begun
        terminated = np.array([turn.terminated for turn in turns.values()], dtype=np.bool_)
        truncated = np.array([turn.truncated for turn in turns.values()], dtype=np.bool_)
        self._over = terminated | truncated
        told = self._infos(turns)
        return tuple(self._observations), np.array(rewards, dtype=np.float64), terminated, truncated, told

    def render(self) -> tuple[str, ...] | None:
        """The episodes so far as texts; None without a render mode."""
        return tuple(seat.transcript() for seat in self.seats) if self.render_mode is not None else None

    def close_extras(self, **_: Any) -> None:
        """Let go of the index."""
        self.game.close()

    def _start(self, number: int, options: dict[str, Any] | None) -> Algorithm[Turn]:
        random = self._randoms[number]
        if random is None:
            random, _ = np_random()
            self._randoms[number] = random
        return self.seats[number].start(random, options)

    def _play(self, moves: dict[int, Algorithm[Turn]]) -> dict[int, Turn]:
        """All of them at once. Where that raises, nobody knows how far each came: all have to begin anew."""
        try:
            outcomes = self.game.play(list(moves.values()))
            turns = {number: self.seats[number].arrive(outcome) for number, outcome in zip(moves, outcomes)}
        except BaseException:
            for number in moves:
                self.seats[number].leave()
            raise
        for number, turn in turns.items():
            self._observations[number] = turn.observation
        return turns

    def _infos(self, turns: dict[int, Turn]) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        for number, turn in turns.items():
            infos = self._add_info(infos, turn.info(), number)
        return infos

    def _chosen(self, mask: object) -> list[int]:
        if mask is None:
            return list(range(self.num_envs))
        if not isinstance(mask, np.ndarray) or mask.shape != (self.num_envs,) or mask.dtype != np.bool_:
            raise StepladderError(f"reset_mask: expected an array of {self.num_envs} booleans, found {mask!r}")
        if not mask.any():
            raise StepladderError("reset_mask: no environment is chosen")
        return list(np.flatnonzero(mask).tolist())
