"""The stage `pairs`: preference pairs from search trees. The work is done by pairs.py and judge/.

In: trees. Out: a folder with `train.jsonl` and `dev.jsonl`, a pair a line, split by question, and `stats.json`.
"""

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from stepladder.driver import Driver
from stepladder.errors import StepladderError
from stepladder.explore.store import read_trees
from stepladder.explore.values import monte_carlo, spre
from stepladder.files import atomic_folder
from stepladder.judge.base import Judge
from stepladder.judge.gold import GoldJudge
from stepladder.judge.llm import LLMJudge
from stepladder.judge.prices import load_prices
from stepladder.judge.settings import COSTS, KEPT, LLMJudgeSettings
from stepladder.judge.value import ValueJudge
from stepladder.pair_stats import PairStats
from stepladder.pairs import PairRules, TreePairs, balanced, dev_questions, judged_groups, tree_pairs
from stepladder.progress import Progress
from stepladder.request import Algorithm
from stepladder.stages.base import StageKind, StageResult, Task
from stepladder.stages.explore import TREES
from stepladder.trace import Pair, Tree, dumps, loads
from stepladder.workshop import Workshop

if TYPE_CHECKING:
    from stepladder.judge.estimate import Estimate

#: What is made, and its folder inside the stage's.
PAIRS = "pairs"
TRAIN, DEV, STATS = "train.jsonl", "dev.jsonl", "stats.json"
#: Trees that a judge that takes its time is asked about at once.
_TREES_AT_ONCE = 64


class PairSettings(PairRules):
    """Who prefers, what makes a pair, and which pairs are kept."""

    #: A value (spre, mc, or q, the search's own), or a judge (gold, llm).
    judge: Literal["spre", "mc", "q", "gold", "llm"] = "spre"
    #: Least difference of two values.
    margin: float = Field(default=0.01, gt=0)
    #: Of SPRE, a step.
    decay: float = Field(default=0.9, gt=0, le=1)
    #: With judge `llm`: which model, how it is asked, and what it may cost.
    llm: LLMJudgeSettings | None = None
    #: Cut groups of pairs to the size of the median group; by kind of the chosen action, by depth, or by both.
    balance: tuple[Literal["kind", "depth"], ...] = ()
    #: Share of the questions whose pairs are held out.
    dev_share: float = Field(default=0.1, ge=0, lt=1)

    @model_validator(mode="after")
    def _a_model_judges(self) -> "PairSettings":
        if (self.judge == "llm") != (self.llm is not None):
            raise ValueError("judge: llm and the settings of the model (llm.model) belong together")
        return self


def make_judge(settings: PairSettings) -> Judge:
    """The judge that was asked for."""
    if settings.judge == "gold":
        return GoldJudge()
    if settings.llm is not None:
        return settings.llm.judge()
    values: dict[str, Callable[[Tree], Any]] = {
        "spre": lambda tree: spre(tree, settings.decay),
        "mc": monte_carlo,
        "q": lambda tree: [node.value if node.visits else node.reward for node in tree.nodes],
    }
    return ValueJudge(settings.judge, values[settings.judge], settings.margin)


def run_pairs(settings: PairSettings, workshop: Workshop, task: Task) -> StageResult:  # noqa: ARG001
    """Judge the siblings of every tree, choose among the pairs, write them."""
    trees = Path(task.inputs[TREES])
    judge = make_judge(settings)
    with TemporaryFile("w+b", dir=task.folder) as heap:
        made, judged = _make(settings, judge, trees, task, heap)
        kept = _chosen(made.places, settings, task.seed)
        held_out = dev_questions([place.question_id for place in made.places], settings.dev_share, task.seed)
        stats = PairStats()
        counts: Counter[str] = Counter()
        with atomic_folder(task.folder / PAIRS, what="pairs") as folder:
            with (folder / TRAIN).open("wb") as train, (folder / DEV).open("wb") as dev:
                for place in kept:
                    line = place.line(heap)
                    stats.add(loads(line.decode(), Pair))
                    split = "dev" if place.question_id in held_out else "train"
                    counts[split] += 1
                    (dev if split == "dev" else train).write(line)
            summary = {
                **stats.summary(),
                "train": counts["train"],
                "dev": counts["dev"],
                "judge": judge.name,
                "dropped": dict((made.dropped + Counter(balance=len(made.places) - len(kept))).most_common()),
                **judged,
            }
            (folder / STATS).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    if not kept:
        raise StepladderError(_nothing(settings, made.dropped))
    return StageResult(summary, {PAIRS: task.folder / PAIRS})


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a pair lies in the heap of all pairs, and what decides whether it is kept."""

    tree: int
    start: int
    length: int
    question_id: str
    kind: str
    depth: int

    def line(self, heap: IO[bytes]) -> bytes:
        heap.seek(self.start)
        return heap.read(self.length)


@dataclass(frozen=True, slots=True)
class _Made:
    #: All pairs, in the order of the trees, whatever the order in which a judge was done with them.
    places: list[_Place]
    dropped: Counter[str]


def _make(
    settings: PairSettings, judge: Judge, trees: Path, task: Task, heap: IO[bytes]
) -> tuple[_Made, dict[str, Any]]:
    """The pairs of all trees, on a heap, because they may be more than memory holds; and what the judge tells."""
    places: list[_Place] = []
    dropped: Counter[str] = Counter()

    def jobs() -> Iterator[Callable[[], Algorithm[TreePairs]]]:
        for tree in read_trees(trees):
            yield partial(tree_pairs, tree, judge, settings)

    with settings.llm.engine(task.folder) if settings.llm is not None else nullcontext() as engine:
        driver = Driver(engine, in_flight=_TREES_AT_ONCE)
        note = None if engine is None else lambda: engine.spend().line()
        with Progress(task.name, count_trees(trees), note=note) as watch:
            for outcome in driver.stream(jobs()):
                if outcome.value is None:
                    assert outcome.failure is not None
                    raise StepladderError(f"{task.name}: {outcome.failure.reason}")
                dropped += outcome.value.dropped
                for pair in outcome.value.pairs:
                    line = (dumps(pair) + "\n").encode()
                    kind = pair.chosen.action.kind.value
                    places.append(_Place(outcome.index, heap.tell(), len(line), pair.question_id, kind, pair.depth))
                    heap.write(line)
                watch(outcome)
        judged = {}
        if engine is not None and isinstance(judge, LLMJudge):
            judged = {"asked": asdict(judge.counts), "spend": asdict(engine.spend())}
    return _Made(sorted(places, key=lambda place: place.tree), dropped), judged


def _chosen(places: list[_Place], settings: PairSettings, seed: int) -> list[_Place]:
    """The pairs that are kept."""
    if not settings.balance:
        return places
    groups = [tuple(getattr(place, name) for name in settings.balance) for place in places]
    return [places[index] for index in balanced(groups, seed)]


def _nothing(settings: PairSettings, dropped: Counter[str]) -> str:
    why = ", ".join(f"{reason} {count:,}" for reason, count in dropped.most_common())
    return (
        f"judge '{settings.judge}' found no pair in the trees (dropped: {why or 'nothing'}). Explore with more "
        "simulations, a larger width or a higher temperature, or lower the margin"
    )


def count_trees(path: Path) -> int:
    """How many trees a file holds."""
    with gzip.open(path) as lines:
        return sum(1 for _ in lines)


def dry_run(settings: PairSettings, trees: Path, folder: Path) -> "Estimate":
    """What the judge of these settings would cost, less what the folder holds of it already."""
    if settings.llm is None:
        raise StepladderError(f"judge '{settings.judge}' costs nothing: there is nothing to estimate")
    from stepladder.judge.estimate import estimate  # brings the client of OpenAI
    from stepladder.judge.paid import replies_in

    groups = ((tree, siblings) for tree in read_trees(trees) for _, siblings in judged_groups(tree, settings))
    price = load_prices(settings.llm.prices).get(settings.llm.model)
    known = replies_in(folder, settings.llm.model, settings.llm.url)
    return estimate(settings.llm.judge(), groups, price, known)


def check_pairs(settings: PairSettings, workshop: Workshop) -> None:  # noqa: ARG001
    """A model that is to be paid must be one that can be paid for."""
    if settings.llm is not None and settings.llm.budget is not None and settings.llm.budget.lower().endswith("usd"):
        load_prices(settings.llm.prices).need(settings.llm.model)


KIND = StageKind(
    PairSettings,
    run_pairs,
    takes=(TREES,),
    makes=(PAIRS,),
    check=check_pairs,
    keeps=KEPT,
    free=frozenset(f"llm.{name}" for name in COSTS),
)
