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
from typing import Any

__version__ = "0.2.0"

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
    "stepladder.judges.base": ("Judge",),
    "stepladder.judges.judge_check": ("check_judge",),
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
