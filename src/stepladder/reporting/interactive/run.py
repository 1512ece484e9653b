"""A run as an object: its recipe, scores, trees, pairs, policy and reward model.

In: a recipe and a folder (`run`), or the folder of an earlier run (`load_run`). Out: a `Run`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from stepladder.core.display import Showable
from stepladder.core.errors import StepladderError
from stepladder.core.io.files import expand_path
from stepladder.core.trace import Pair, Tree
from stepladder.evaluation.statistics import Interval, interval_text
from stepladder.explore.tree_store import read_trees
from stepladder.pipeline.agent_config import users_recipe
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.runner import RunReport, run_recipe
from stepladder.pipeline.stage import PAIRS, TREES
from stepladder.preferences.pair_checks import read_pairs
from stepladder.reporting.interactive.policy import Policy, load_policy, load_prm
from stepladder.reporting.report.run_data import load_run as load_run_data
from stepladder.reporting.run_tables import evaluations, print_report, print_scores

if TYPE_CHECKING:
    from stepladder.judges.prm.reward_model import ProcessRewardModel


class RunScores(dict[str, dict[str, Any]], Showable):
    """The summary numbers of the evaluations of a run, by stage."""

    def __init__(self, report: RunReport) -> None:
        super().__init__({stage.name: stage.summary for stage in evaluations(report)})
        self.report = report

    def __repr__(self) -> str:
        f1 = (f"{stage}: F1 {interval_text(Interval(**numbers['f1']), 2)}" for stage, numbers in self.items())
        return f"RunScores({', '.join(f1)})"

    def _print(self, console: Console) -> None:
        print_scores(console, self.report)


class Trees(Sequence[Tree]):
    """The search trees of a run, read from disk as they are needed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice) or index < 0:
            return list(read_trees(self.path))[index]
        found = next(islice(read_trees(self.path), index, None), None)
        if found is None:
            raise IndexError(f"there are {len(self)} trees")
        return found

    def __iter__(self) -> Iterator[Tree]:
        return read_trees(self.path)

    def __len__(self) -> int:
        return sum(1 for _ in read_trees(self.path))

    def __repr__(self) -> str:
        return f"Trees({len(self)} in {str(self.path)!r})"


class Run(Showable):
    """A run in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = RunFolder.open(folder)

    def __repr__(self) -> str:
        done = [stage.name for stage in self.recipe.stages if self.files.done(stage.name) is not None]
        return f"Run({str(self.folder)!r}, recipe={self.recipe.name!r}, done={done})"

    def _print(self, console: Console) -> None:
        print_report(console, self.report)

    @property
    def recipe(self) -> Recipe:
        """The recipe with every value."""
        return self.files.recipe()

    @property
    def report(self) -> RunReport:
        """Records of all finished stages."""
        return load_run_data(self.folder).report

    def scores(self) -> RunScores:
        """All evaluations: `run.scores()["eval-sft"]["f1"]`, or `.show()` for the table."""
        return RunScores(self.report)

    @property
    def trees(self) -> Trees:
        """The newest search trees."""
        return Trees(self._newest(TREES))

    @property
    def pairs(self) -> Iterator[Pair]:
        """The newest preference pairs (train split)."""
        return iter(read_pairs(self._newest(PAIRS))[0])

    @cached_property
    def policy(self) -> Policy:
        """The trained policy with the best dev score, with the agent, data and limits of the recipe."""
        return load_policy(self.folder)

    @property
    def agent(self) -> Policy:
        """The policy, ready to be asked: `run.agent.ask("Who ...?").show()`."""
        return self.policy

    @cached_property
    def prm(self) -> "ProcessRewardModel":
        """The newest process reward model, loaded on the device of the recipe."""
        shared = self.recipe.shared
        return load_prm(self.folder, device=shared.device, dtype=shared.dtype)

    def _newest(self, role: str) -> Path:
        path = self.files.newest(role)
        if path is None:
            raise StepladderError(f"the run {self.folder} has no {role} yet")
        return path


def run(
    recipe: str | Path | Mapping[str, Any],
    out: str | Path,
    overrides: Mapping[str, Any] | Iterable[str] = (),
    *,
    update: bool = False,
) -> Run:
    """Run a recipe in a folder and return the run. Finished stages are skipped.

    `recipe` is a built-in name, a YAML file, or the content of one as a dictionary.

    `overrides` changes settings: `{"stages.sft.num_train_epochs": 5}`, or a list of `"key=value"`. `update` recomputes
    stages that have become stale.
    """
    if isinstance(overrides, Mapping):
        overrides = [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    folder = expand_path(str(out))
    run_recipe(users_recipe(recipe, overrides), folder, update=update)
    return Run(folder)


def load_run(folder: str | Path) -> Run:
    """The run in a folder."""
    return Run(expand_path(str(folder)))
