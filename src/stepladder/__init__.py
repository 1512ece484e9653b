"""Stepladder trains language models to answer hard questions by searching, with feedback on every step.

    import stepladder as sl

    run = sl.run("prorag-nano", "runs/nano")                 # a recipe, run in a folder
    run.scores().show(); run.trees[0].show()                 # look at results
    run.agent.ask("Who ...?").show()                         # ask the trained agent
    sl.evaluate(run.policy, "atlas", split="test", limit=300).show()
    sl.compare(run, "runs/other").show()

Every name below is imported on first use, so that `import stepladder` stays fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stepladder.core.version import __version__

if TYPE_CHECKING:  # for type checkers and editors; at run time the names are imported on first use
    from stepladder.agents.base import Agent as Agent
    from stepladder.core.requests import Generate as Generate, Retrieve as Retrieve, Score as Score
    from stepladder.core.step_scorer import StepScorer as StepScorer, check_step_scorer as check_step_scorer
    from stepladder.core.trace import (
        Pair as Pair,
        Question as Question,
        Step as Step,
        Trajectory as Trajectory,
        Tree as Tree,
    )
    from stepladder.data import load_dataset as load_dataset
    from stepladder.driver import Driver as Driver
    from stepladder.engines.base import Engine as Engine, check_engine as check_engine
    from stepladder.explore.guided import guided_search as guided_search
    from stepladder.explore.mcts import mcts_search as mcts_search
    from stepladder.judges.base import Judge as Judge, check_judge as check_judge
    from stepladder.oracle.agent_check import check_agent as check_agent
    from stepladder.reporting.compare import compare as compare
    from stepladder.reporting.interactive.policy import (
        Policy as Policy,
        evaluate as evaluate,
        load_policy as load_policy,
        load_prm as load_prm,
    )
    from stepladder.reporting.interactive.run import Run as Run, load_run as load_run, run as run
    from stepladder.retrieval.base import Retriever as Retriever, check_retriever as check_retriever
    from stepladder.retrieval.factory import load_retriever as load_retriever
    from stepladder.train.dpo.config import DPOConfig as DPOConfig
    from stepladder.train.dpo.trainer import DPOTrainer as DPOTrainer
    from stepladder.train.grpo.config import GRPOConfig as GRPOConfig
    from stepladder.train.grpo.trainer import GRPOTrainer as GRPOTrainer
    from stepladder.train.prm.config import PRMConfig as PRMConfig
    from stepladder.train.prm.trainer import PRMTrainer as PRMTrainer
    from stepladder.train.rft.config import RFTConfig as RFTConfig
    from stepladder.train.rft.trainer import RFTTrainer as RFTTrainer
    from stepladder.train.sft.config import SFTConfig as SFTConfig
    from stepladder.train.sft.trainer import SFTTrainer as SFTTrainer

#: Public names by the module that defines them.
_PUBLIC = {
    "stepladder.reporting.interactive.run": ("Run", "load_run", "run"),
    "stepladder.reporting.interactive.policy": ("Policy", "evaluate", "load_policy", "load_prm"),
    "stepladder.reporting.compare": ("compare",),
    "stepladder.data": ("load_dataset",),
    "stepladder.retrieval.factory": ("load_retriever",),
    "stepladder.core.trace": ("Pair", "Question", "Step", "Trajectory", "Tree"),
    "stepladder.core.requests": ("Generate", "Retrieve", "Score"),
    "stepladder.core.step_scorer": ("StepScorer", "check_step_scorer"),
    "stepladder.agents.base": ("Agent",),
    "stepladder.oracle.agent_check": ("check_agent",),
    "stepladder.engines.base": ("Engine", "check_engine"),
    "stepladder.retrieval.base": ("Retriever", "check_retriever"),
    "stepladder.judges.base": ("Judge", "check_judge"),
    "stepladder.driver": ("Driver",),
    "stepladder.explore.mcts": ("mcts_search",),
    "stepladder.explore.guided": ("guided_search",),
    "stepladder.train.sft.config": ("SFTConfig",),
    "stepladder.train.sft.trainer": ("SFTTrainer",),
    "stepladder.train.rft.config": ("RFTConfig",),
    "stepladder.train.rft.trainer": ("RFTTrainer",),
    "stepladder.train.prm.config": ("PRMConfig",),
    "stepladder.train.prm.trainer": ("PRMTrainer",),
    "stepladder.train.dpo.config": ("DPOConfig",),
    "stepladder.train.dpo.trainer": ("DPOTrainer",),
    "stepladder.train.grpo.config": ("GRPOConfig",),
    "stepladder.train.grpo.trainer": ("GRPOTrainer",),
}
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'stepladder' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
