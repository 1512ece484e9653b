"""The search for answers as a Gymnasium environment, for reinforcement learning libraries of any make.

Importing this module registers `stepladder/Search-v0`. Gymnasium imports it by itself when the id names it:
`gymnasium.make("stepladder.gym:stepladder/Search-v0")`. It is light: data, index and models are opened by an
environment (`environment.py`, `vector.py`), and the arguments are those of `game.GameConfig`.
"""

from stepladder.core.errors import StepladderError
from stepladder.core.extras import install_command

try:
    from gymnasium.envs.registration import register
except ModuleNotFoundError as error:
    raise StepladderError(
        f"stepladder.gym needs Gymnasium, which is not installed ({error}): {install_command('gym')}"
    ) from error

__all__ = ["ENV_ID"]

ENV_ID = "stepladder/Search-v0"

register(
    ENV_ID,
    entry_point="stepladder.gym.environment:SearchEnv",
    vector_entry_point="stepladder.gym.vector:SearchVectorEnv",
)
