"""Question answering by search as a Gymnasium environment, for any reinforcement learning library.

Importing this module registers `stepladder/Search-v0`. `gymnasium.make("stepladder.gym:stepladder/Search-v0")` imports
it automatically. Data, index and models are opened by the environments (`environment.py`), whose arguments
are the fields of `env_config.EnvConfig`.
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
    vector_entry_point="stepladder.gym.environment:SearchVectorEnv",
)
