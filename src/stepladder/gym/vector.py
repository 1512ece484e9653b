"""Vectorized environment: each step runs the searches of all environments in one batch, and their scores in another.

In: the number of environments and the fields of `env_config.EnvConfig`. Out: a `gymnasium.vector.VectorEnv`. Each
environment behaves as a `SearchEnv` with the same seed; data, index and scorer are shared. The step after the end of an
episode starts the next one (`AutoresetMode.NEXT_STEP`) and ignores the action.
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from stepladder.core.errors import StepladderError
from stepladder.core.requests import Algorithm
from stepladder.gym.env_config import EnvBackend
from stepladder.gym.environment import SearchEnv
from stepladder.gym.episode_slot import EpisodeSlot
from stepladder.gym.transition import Transition

Observations = tuple[str, ...]
Array = np.ndarray[Any, Any]


class SearchVectorEnv(VectorEnv[Observations, Iterable[str], Array]):
    """A vector of `SearchEnv`s."""

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc] # a class variable there too
        **SearchEnv.metadata,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(self, num_envs: int = 1, render_mode: str | None = None, **arguments: Any) -> None:
        """`arguments` are the fields of `EnvConfig`."""
        if num_envs < 1:
            raise StepladderError(f"num_envs is {num_envs}; expected at least 1")
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.backend = EnvBackend(arguments)
        self.slots = [EpisodeSlot(self.backend, render_mode) for _ in range(num_envs)]
        self.single_observation_space, self.single_action_space = self.backend.spaces()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._rngs: list[np.random.Generator | None] = [None] * num_envs
        self._observations = [""] * num_envs
        #: Environments whose next step starts an episode.
        self._done = np.zeros(num_envs, dtype=np.bool_)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        """Start episodes in all environments, or where `options["reset_mask"]` is true.

        An integer seeds environment i with `seed + i`; a list has one seed per environment. Other options are those of
        `SearchEnv`.
        """
        seeds = [seed + index for index in range(self.num_envs)] if isinstance(seed, int) else seed
        if seeds is not None and len(seeds) != self.num_envs:
            raise StepladderError(f"found {len(seeds)} seeds for {self.num_envs} environments")
        options_left = dict(options or {})
        chosen = self._chosen(options_left.pop("reset_mask", None))
        for index in chosen:
            if seeds is not None and seeds[index] is not None:
                self._rngs[index], _ = np_random(seeds[index])
        transitions = self._run({index: self._start(index, options_left) for index in chosen})
        self._done[chosen] = False
        return tuple(self._observations), self._infos(transitions)

    def step(self, actions: Iterable[str]) -> tuple[Observations, Array, Array, Array, dict[str, Any]]:
        """One action per environment, in order."""
        texts = [actions] if isinstance(actions, str) else list(actions)
        if len(texts) != self.num_envs:
            raise StepladderError(f"expected one action for each of {self.num_envs} environments, found {len(texts)}")
        # All actions are checked before anything runs, so that an invalid one changes nothing.
        acting = {index: self.slots[index].act(texts[index]) for index in np.flatnonzero(~self._done).tolist()}
        starting = {index: self._start(index, None) for index in np.flatnonzero(self._done).tolist()}
        transitions = self._run(dict(sorted((acting | starting).items())))
        rewards = [self.backend.reward.of(each) for each in transitions.values()]  # 0 at the start of an episode
        terminated = np.array([each.terminated for each in transitions.values()], dtype=np.bool_)
        truncated = np.array([each.truncated for each in transitions.values()], dtype=np.bool_)
        self._done = terminated | truncated
        infos = self._infos(transitions)
        return tuple(self._observations), np.array(rewards, dtype=np.float64), terminated, truncated, infos

    def render(self) -> tuple[str, ...] | None:
        """The episodes so far as texts; None without a render mode."""
        return tuple(slot.transcript() for slot in self.slots) if self.render_mode is not None else None

    def close_extras(self, **_: Any) -> None:
        """Close the index."""
        self.backend.close()

    def _start(self, index: int, options: dict[str, Any] | None) -> Algorithm[Transition]:
        rng = self._rngs[index]
        if rng is None:
            rng, _ = np_random()
            self._rngs[index] = rng
        return self.slots[index].start(rng, options)

    def _run(self, pending: dict[int, Algorithm[Transition]]) -> dict[int, Transition]:
        """Run all of them together. If that raises, their state is unknown: all have to be reset."""
        try:
            outcomes = self.backend.run(list(pending.values()))
            transitions = {index: self.slots[index].finish_step(outcome) for index, outcome in zip(pending, outcomes)}
        except BaseException:
            for index in pending:
                self.slots[index].abandon()
            raise
        for index, transition in transitions.items():
            self._observations[index] = transition.observation
        return transitions

    def _infos(self, transitions: dict[int, Transition]) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        for index, transition in transitions.items():
            infos = self._add_info(infos, transition.info(), index)
        return infos

    def _chosen(self, mask: object) -> list[int]:
        if mask is None:
            return list(range(self.num_envs))
        if not isinstance(mask, np.ndarray) or mask.shape != (self.num_envs,) or mask.dtype != np.bool_:
            raise StepladderError(f"reset_mask: expected an array of {self.num_envs} booleans, found {mask!r}")
        if not mask.any():
            raise StepladderError("reset_mask: no environment is selected")
        return list(np.flatnonzero(mask).tolist())
