"""The environments: one question per episode; observations are the policy's prompt, actions its generated text.

In: the fields of `env_config.EnvConfig`. Out: a `gymnasium.Env`, made by `gymnasium.make("stepladder/Search-v0", ...)`,
or a `gymnasium.vector.VectorEnv`, made by `gymnasium.make_vec`: each of its steps runs the searches of all environments
in one batch, and their scores in another.
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from stepladder.core.errors import StepladderError
from stepladder.core.requests import Algorithm
from stepladder.gym.env_config import EnvBackend
from stepladder.gym.episode_slot import EpisodeSlot, Transition, run_slots, write_actions

Observations = tuple[str, ...]
Array = np.ndarray[Any, Any]


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
        (result,) = run_slots(self.backend, {self.slot: self.slot.start(self.np_random, options)})
        return result.observation, result.info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Apply the policy's text, which is truncated after the agent's first stop string."""
        (result,) = run_slots(self.backend, {self.slot: self.slot.act(action)})
        reward = result.reward(self.backend.settings)
        return result.observation, reward, result.terminated, result.truncated, result.info()

    def write(self) -> str:
        """The next action of the model behind the server (`server` in `EnvConfig`): the argument of `step`."""
        return write_actions(self.backend, [self.slot])[0]

    def render(self) -> str | None:
        """The episode so far as text; None without a render mode."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() needs a render mode: make the environment with render_mode='ansi'")
            return None
        return self.slot.transcript()

    def close(self) -> None:
        self.backend.close()


class SearchVectorEnv(VectorEnv[Observations, Iterable[str], Array]):
    """A vector of environments, each of which behaves as a `SearchEnv` with the same seed.

    Data, index and scorer are shared. The step after the end of an episode starts the next one
    (`AutoresetMode.NEXT_STEP`) and ignores the action.
    """

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
        self._rngs = [np_random()[0] for _ in range(num_envs)]
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
        _, infos = self._run({index: self.slots[index].start(self._rngs[index], options_left) for index in chosen})
        self._done[chosen] = False
        return tuple(self._observations), infos

    def step(self, actions: Iterable[str]) -> tuple[Observations, Array, Array, Array, dict[str, Any]]:
        """One action per environment, in order."""
        texts = [actions] if isinstance(actions, str) else list(actions)
        if len(texts) != self.num_envs:
            raise StepladderError(f"expected one action for each of {self.num_envs} environments, found {len(texts)}")
        # All actions are checked before anything runs, so that an invalid one changes nothing.
        acting = {index: self.slots[index].act(texts[index]) for index in np.flatnonzero(~self._done).tolist()}
        done = np.flatnonzero(self._done).tolist()
        starting = {index: self.slots[index].start(self._rngs[index], None) for index in done}
        transitions, infos = self._run(dict(sorted((acting | starting).items())))
        rewards = np.array([each.reward(self.backend.settings) for each in transitions], dtype=np.float64)
        terminated = np.array([each.terminated for each in transitions], dtype=np.bool_)
        truncated = np.array([each.truncated for each in transitions], dtype=np.bool_)
        self._done = terminated | truncated
        return tuple(self._observations), rewards, terminated, truncated, infos

    def write(self) -> Observations:
        """The next actions of the model behind the server, in concurrent calls; empty where an episode has ended."""
        running = {index: slot for index, slot in enumerate(self.slots) if slot.is_running}
        actions = dict(zip(running, write_actions(self.backend, list(running.values()))))
        return tuple(actions.get(index, "") for index in range(self.num_envs))

    def render(self) -> tuple[str, ...] | None:
        """The episodes so far as texts; None without a render mode."""
        return tuple(slot.transcript() for slot in self.slots) if self.render_mode is not None else None

    def close_extras(self, **_: Any) -> None:
        self.backend.close()

    def _run(self, pending: dict[int, Algorithm[Transition]]) -> tuple[list[Transition], dict[str, Any]]:
        """Run the algorithms of some environments; returns their transitions and infos."""
        transitions = run_slots(self.backend, {self.slots[index]: each for index, each in pending.items()})
        infos: dict[str, Any] = {}
        for index, transition in zip(pending, transitions):
            self._observations[index] = transition.observation
            infos = self._add_info(infos, transition.info(), index)
        return transitions, infos

    def _chosen(self, mask: object) -> list[int]:
        if mask is None:
            return list(range(self.num_envs))
        if not isinstance(mask, np.ndarray) or mask.shape != (self.num_envs,) or mask.dtype != np.bool_:
            raise StepladderError(f"reset_mask: expected an array of {self.num_envs} booleans, found {mask!r}")
        if not mask.any():
            raise StepladderError("reset_mask: no environment is selected")
        return list(np.flatnonzero(mask).tolist())
