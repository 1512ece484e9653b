"""Recipes that train nothing, and a tiny model in a folder."""

from stepladder.core.config import Config
from stepladder.models.tiny import tiny_model, tiny_tokenizer
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.stages import StageResult, Task

EVALUATIONS = """
policy: tiny
agent: rag
device: cpu
episode: {max_tokens: 4}
stages:
  floor: {kind: eval, limit: 3}
  oracle: {kind: eval, policy: oracle, limit: 3}
"""


class NoConfig(Config):
    """Nothing to set."""


def save_tiny(settings: Config, context: RunContext, task: Task) -> StageResult:
    """Instead of training: the model as it is."""
    policy = task.folder / "policy"
    tiny_model().save_pretrained(policy)
    tiny_tokenizer().save_pretrained(policy)
    return StageResult({}, {"policy": policy})
