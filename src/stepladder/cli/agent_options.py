"""Options of guided inference, shared by the commands that play: who chooses, among what."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from stepladder.cli.options import path_of
from stepladder.core.errors import StepladderError
from stepladder.core.step_scorer import StepScorer
from stepladder.models import built_in_folder
from stepladder.pipeline.guide_config import GuideConfig
from stepladder.pipeline.resources import SharedConfig
from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.stage import REWARD

GuideName = Annotated[
    str | None,
    typer.Option(
        "--guide",
        help="Sample more, and let this choose: prm (the run's newest reward model), the folder of one, gold (the gold "
        "judge), or vote (the most common answer).",
    ),
]
N = Annotated[
    int | None, typer.Option("--n", min=1, help="With --guide: samples of a step or an episode [dim](default: 8)[/]")
]
StrategyName = Annotated[
    str | None,
    typer.Option("--strategy", help="With --guide: actions [dim](the default)[/], beam, trajectories or mcts."),
]
AggregateName = Annotated[
    str | None,
    typer.Option(
        "--aggregate",
        help="With --strategy beam or trajectories: min [dim](the default)[/], mean or last of scores.",
    ),
]
Weighted = Annotated[
    bool, typer.Option("--weighted", help="With --guide: multiply scores by the samples that say the same.")
]
Beams = Annotated[
    int | None, typer.Option("--beams", min=1, help="With --strategy beam: states that are kept [dim](default: 2)[/]")
]
Simulations = Annotated[
    int | None, typer.Option("--simulations", min=1, help="With --strategy mcts [dim](default: 32)[/]")
]
GuidedTemperature = Annotated[
    float | None, typer.Option("--temperature", min=0.0, help="0 is greedy [dim](default: 0; with --guide 1)[/]")
]


@dataclass(frozen=True, slots=True)
class GuideOptions:
    """What was asked for: settings, and the folder of the reward model if one chooses."""

    settings: GuideConfig
    reward: str | None


def guide_options(
    guide: str | None,
    run: Path | None,
    *,
    n: int | None = None,
    strategy: str | None = None,
    aggregate: str | None = None,
    weighted: bool = False,
    beams: int | None = None,
    simulations: int | None = None,
    temperature: float | None = None,
    top_p: float = 1.0,
) -> GuideOptions | None:
    """The guide that was asked for; None without --guide."""
    given = {
        "n": n,
        "strategy": strategy,
        "aggregate": aggregate,
        "weighted": weighted or None,
        "beams": beams,
        "simulations": simulations,
    }
    asked = {name: value for name, value in given.items() if value is not None}
    if guide is None:
        if asked:
            raise StepladderError(f"--{next(iter(asked))} goes with --guide: say who chooses (prm, gold, vote, FOLDER)")
        return None
    if temperature == 0:
        raise StepladderError("--temperature 0 draws the same sample every time: a guide would have nothing to choose")
    by = guide if guide in ("gold", "vote") else "prm"
    drawn = {"top_p": top_p, **({} if temperature is None else {"temperature": temperature})}
    settings = GuideConfig.read({"by": by, **asked, **drawn}, "--guide")
    return GuideOptions(settings, _reward(guide, run) if by == "prm" else None)


@contextmanager
def opened_scorer(options: GuideOptions | None, shared: SharedConfig) -> Iterator[StepScorer | None]:
    """Who scores for the guide; None where nobody does."""
    if options is None:
        yield None
        return
    with options.settings.scorer(options.reward, shared.device, shared.dtype) as scorer:
        yield scorer


def _reward(guide: str, run: Path | None) -> str:
    if guide != "prm":
        folder = built_in_folder(guide) or path_of(guide)
        if not (folder / "config.json").is_file():
            raise StepladderError(f"--guide {guide}: expected prm, gold, vote or the folder of a reward model")
        return str(folder)
    if run is None:
        raise StepladderError("--guide prm is the reward model of a run: say --run DIR, or --guide FOLDER")
    found = RunFolder.open(run).newest(REWARD)
    if found is None:
        raise StepladderError(f"no stage of the run {run} has made a reward model: `stepladder train prm --run {run}`")
    return str(found)
