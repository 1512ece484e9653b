"""The pages of the Python API: every public name of the package, by topic, rendered by mkdocstrings.

In: `stepladder.__all__`. Out: Markdown with a directive per name. A name that no topic lists is an error.
"""

import stepladder
from stepladder.core.errors import StepladderError

#: Pages of the reference: path, title, introduction, names.
_PAGES = (
    (
        "runs",
        "Runs and policies",
        "Run a recipe, open a run, ask its agent, measure it.",
        (
            "run",
            "load_run",
            "Run",
            "load_policy",
            "load_prm",
            "Policy",
            "evaluate",
            "compare",
            "load_dataset",
            "load_retriever",
        ),
    ),
    (
        "data-types",
        "Data types",
        "What every part of the library reads and writes.",
        ("Question", "Step", "Trajectory", "Tree", "Pair"),
    ),
    (
        "algorithms",
        "Algorithms and the driver",
        "Algorithms are generators that yield requests; the driver answers them in full batches.",
        ("Driver", "Generate", "Retrieve", "Score", "mcts_search", "guided_search"),
    ),
    (
        "contracts",
        "Classes of your own",
        "What an agent, an engine, a retriever, a judge or a scorer must do, and the checks to run on yours.",
        (
            *("Agent", "check_agent", "Engine", "check_engine", "Retriever", "check_retriever"),
            *("Judge", "check_judge", "StepScorer", "check_step_scorer"),
        ),
    ),
    (
        "trainers",
        "Trainers",
        "The trainers behind the stages, with their settings. Each setting is explained on the page of its stage.",
        (
            *("SFTTrainer", "SFTConfig", "RFTTrainer", "RFTConfig", "PRMTrainer", "PRMConfig"),
            *("DPOTrainer", "DPOConfig", "GRPOTrainer", "GRPOConfig"),
        ),
    ),
)


def pages() -> dict[str, str]:
    """Markdown by the path of its page."""
    modules = {name: module for module, names in stepladder._PUBLIC.items() for name in names}
    listed = [name for *_, names in _PAGES for name in names]
    if missing := set(modules) ^ set(listed):
        raise StepladderError(
            f"docs/site/api_reference.py: no topic, or no public name, for {', '.join(sorted(missing))}"
        )
    found = {}
    for path, title, introduction, names in _PAGES:
        lines = [f"# {title}\n", f"{introduction} All names can be imported from `stepladder`.\n"]
        lines += [f"::: {modules[name]}.{name}\n" for name in names]
        found[f"reference/api/{path}.md"] = "\n".join(lines)
    return found
