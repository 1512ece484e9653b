"""Old recipe keys, values and stage names are errors that give the new name, in a recipe and with --set."""

import pytest

from stepladder.core.config import Config
from stepladder.core.errors import StepladderError
from stepladder.pipeline.recipe import load_recipe
from stepladder.pipeline.resources import SharedConfig
from stepladder.pipeline.search_config import ExploreConfig
from stepladder.pipeline.stages.prm_eval import PRMEvalConfig
from stepladder.pipeline.stages.rank import RankConfig
from stepladder.train.dpo.config import DPOConfig
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.loop.config import LoraConfig
from stepladder.train.prm.config import PRMConfig
from stepladder.train.rft.config import RFTConfig
from stepladder.train.sft.config import SFTConfig

TRAINED = (SFTConfig, RFTConfig, PRMConfig, DPOConfig, GRPOConfig)
CONFIGS = (*TRAINED, LoraConfig, SharedConfig, ExploreConfig, RankConfig, PRMEvalConfig)
#: Settings of a base class that its subclasses do not all have.
NOT_EVERYWHERE = {"samples", "base_url"}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.__name__)
def test_former_names_are_gone_and_new_ones_are_there(config: type[Config]) -> None:
    assert config.renamed
    for old, new in config.renamed.items():
        assert old not in config.model_fields
        assert new in config.model_fields or old in NOT_EVERYWHERE
        with pytest.raises(StepladderError, match=f"^here: {old}: renamed to '{new}'$"):
            config.read({old: 1}, "here")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("stages.sft.lr=1e-4", "stages.sft.lr: renamed to 'learning_rate'"),
        ("stages.sft.lora.rank=4", "stages.sft.lora.rank: renamed to 'r'"),
        ("stages.grpo.samples=4", "stages.grpo.samples: renamed to 'num_generations'"),
        ("stages.grpo.guards.stop=false", "stages.grpo.guards: renamed to 'monitors'"),
        ("stages.grpo.grader=model", "stages.grpo.grader: renamed to 'scorer'"),
        ("stages.grpo.scorer=model", "expected 'prm' or 'gold', found 'model', which was renamed to 'prm'"),
        ("batch=8", "batch: renamed to 'batch_size'"),
        ("stages.oracle.policy=gold", "found 'gold': renamed to 'oracle'"),
        ("stages.after.limit=5", "stage 'after' was renamed to 'eval-sft'"),
        ("stages.trained.limit=5", "stage 'trained' was renamed to 'eval-grpo'"),
        ("stages.eval-grpo.policy=refined", "found 'refined': renamed to 'eval-rft'"),
    ],
)
def test_a_former_name_in_an_override_gives_the_new_one(change: str, message: str) -> None:
    with pytest.raises(StepladderError) as error:
        load_recipe("prorag-nano", [change])
    assert message in str(error.value)


def test_the_stage_after_dpo_has_a_name_of_its_own() -> None:
    with pytest.raises(StepladderError, match="stage 'refined' was renamed to 'eval-dpo'"):
        load_recipe("reasonrag-nano", ["stages.refined.limit=5"])
