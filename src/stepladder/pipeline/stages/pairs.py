"""The stage `pairs`: preference pairs from search trees. The work is done by pairs.py and judge/.

In: trees. Out: a folder with `train.jsonl` and `dev.jsonl`, a pair a line, split by question, and `stats.json`.
"""

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_folder
from stepladder.core.io.records import dumps, loads
from stepladder.core.requests import Algorithm
from stepladder.core.trace import Pair
from stepladder.driver import Driver
from stepladder.driver.progress import Progress
from stepladder.explore.tree_store import read_trees
from stepladder.judges.base import Judge, JudgeOptions
from stepladder.judges.llm.config import COST_SETTINGS, PERSISTENT_FILES, LLMJudgeConfig
from stepladder.judges.llm.llm_judge import LLMJudge
from stepladder.judges.registry import JudgeName, judges, make_judge
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.stage import (
    DEV_PAIRS,
    PAIR_STATS,
    PAIRS,
    TRAIN_PAIRS,
    TREES,
    StageResult,
    StageSpec,
    Task,
    never,
    no_questions,
)
from stepladder.preferences.pair_stats import PairStats, format_counts
from stepladder.preferences.pairs import PairRules, TreePairs, balanced, dev_questions, judged_groups, tree_pairs

if TYPE_CHECKING:
    from stepladder.judges.llm.spend.estimate import Estimate

#: Trees that a judge that takes its time is asked about at once.
_TREES_AT_ONCE = 64


class PairConfig(PairRules):
    """Who prefers, what makes a pair, and which pairs are kept."""

    #: A value (spre, mc, or q, the search's own), what a stage `rank` was told (rank), or a judge (gold, llm).
    judge: JudgeName = "spre"
    #: Least difference of two values, which are between 0 and 1.
    margin: float = Field(default=0.01, gt=0, le=1)
    #: With judge `llm`: which model, how it is asked, and what it may cost.
    llm: LLMJudgeConfig | None = None
    #: Cut groups of pairs to the size of the median group; by kind of the chosen action, by depth, or by both.
    balance: tuple[Literal["kind", "depth"], ...] = ()
    #: Share of the explored questions whose pairs are held out.
    dev_share: float = Field(default=0.1, ge=0, lt=1)

    @model_validator(mode="after")
    def _a_model_judges(self) -> "PairConfig":
        if judges().get(self.judge).uses_llm != (self.llm is not None):
            raise ValueError("judge: llm and the settings of the model (llm.model) belong together")
        return self

    def make_judge(self) -> Judge:
        """The judge, with its part of these settings."""
        return make_judge(self.judge, JudgeOptions(self.margin, self.decay, self.llm))


def run_pairs(settings: PairConfig, context: RunContext, task: Task) -> StageResult:
    """Judge the siblings of every tree, choose among the pairs, write them."""
    judge = settings.make_judge()
    with TemporaryFile("w+b", dir=task.folder) as heap:
        made = _make(settings, judge, context, task, heap)
        kept = _chosen(made.places, settings, task.seed)
        if not kept:
            raise StepladderError(f"{task.name}: {_nothing(settings, made)}")
        held_out = dev_questions(made.questions, settings.dev_share)
        if held_out.issuperset(place.question_id for place in kept):  # there must be something to learn from
            held_out = frozenset()
        stats = PairStats()
        counts: Counter[str] = Counter()
        with atomic_folder(task.folder / PAIRS, what="pairs") as folder:
            with (folder / TRAIN_PAIRS).open("wb") as train, (folder / DEV_PAIRS).open("wb") as dev:
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
                "dropped": _by_count(made.dropped + Counter(balance=len(made.places) - len(kept))),
                **made.judged,
            }
            (folder / PAIR_STATS).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
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


@dataclass(slots=True)
class _Made:
    """What was made of all trees."""

    #: All pairs, in the order of the trees, whatever the order in which a judge was done with them.
    places: list[_Place] = field(default_factory=list)
    #: Ids of the questions whose trees were looked at.
    questions: list[str] = field(default_factory=list)
    #: Preferences that became no pair, by reason.
    dropped: Counter[str] = field(default_factory=Counter)
    #: What a model as judge tells of its work.
    judged: dict[str, Any] = field(default_factory=dict)


def _make(settings: PairConfig, judge: Judge, context: RunContext, task: Task, heap: IO[bytes]) -> _Made:
    """The pairs of all trees, on a heap, because they may be more than memory holds."""
    trees = Path(task.inputs[TREES])
    made = _Made()

    def jobs() -> Iterator[Callable[[], Algorithm[TreePairs]]]:
        for tree in read_trees(trees):
            made.questions.append(tree.question.id)
            yield partial(tree_pairs, tree, judge, settings)

    llm = settings.llm
    opened = nullcontext() if llm is None else closing(llm.open_engine(task.folder, context.settings.device))
    with opened as engine:
        driver = Driver(engine, in_flight=_TREES_AT_ONCE)
        note = None if engine is None else lambda: engine.spend().line()
        with Progress(task.name, count_trees(trees), note=note) as watch:
            for outcome in driver.stream(jobs()):
                if outcome.value is None:
                    assert outcome.failure is not None
                    raise StepladderError(f"{task.name}: {outcome.failure.reason}")
                made.dropped.update(outcome.value.dropped)
                for pair in outcome.value.pairs:
                    line = (dumps(pair) + "\n").encode()
                    kind = pair.chosen.action.kind.value
                    place = _Place(outcome.index, heap.tell(), len(line), pair.question_id, kind, pair.depth)
                    made.places.append(place)
                    heap.write(line)
                watch(outcome)
        if engine is not None and isinstance(judge, LLMJudge):
            made.judged = {**judge.summary(), "spend": asdict(engine.spend())}
    made.places.sort(key=lambda place: place.tree)
    return made


def _chosen(places: list[_Place], settings: PairConfig, seed: int) -> list[_Place]:
    """The pairs that are kept."""
    if not settings.balance:
        return places
    groups = [tuple(getattr(place, name) for name in settings.balance) for place in places]
    return [places[index] for index in balanced(groups, seed)]


def _nothing(settings: PairConfig, made: _Made) -> str:
    """Why there are no pairs, and what to do about it."""
    dropped = format_counts(_by_count(made.dropped)) or "nothing"
    if made.judged:
        problem = next(iter(made.judged["problems"]), None)
        often = "" if problem is None else f", most often: {problem}"
        return f"the model found no pair in the trees ({format_counts(made.judged['asked'])}; dropped: {dropped}){often}"
    found = f"judge '{settings.judge}' found no pair in the trees (dropped: {dropped})"
    return f"{found}. {judges().get(settings.judge).advice}"


def _by_count(counts: Counter[str]) -> dict[str, int]:
    """The largest first; equal ones by name, whatever the order in which they were counted."""
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))


def count_trees(path: Path) -> int:
    """How many trees a file holds."""
    with gzip.open(path) as lines:
        return sum(1 for _ in lines)


def dry_run(settings: PairConfig, trees: Path, folder: Path) -> "Estimate":
    """What the judge of these settings would cost, less what the folder holds of it already."""
    if settings.llm is None:
        raise StepladderError(f"judge '{settings.judge}' costs nothing: there is nothing to estimate")
    from stepladder.judges.llm.spend.estimate import estimate  # brings the client of OpenAI

    groups = ((tree, siblings) for tree in read_trees(trees) for _, siblings in judged_groups(tree, settings))
    return estimate(settings.llm.judge(), groups, settings.llm.price(), settings.llm.cached_responses(folder))


def check_pairs(settings: PairConfig, context: RunContext) -> None:  # noqa: ARG001
    """A model that is to be paid must be one that can be paid for."""
    if settings.llm is not None:
        settings.llm.check()


STAGE = StageSpec(
    PairConfig,
    run_pairs,
    (TREES,),
    (PAIRS,),
    check=check_pairs,
    questions=no_questions,
    generates=never,
    persistent_files=PERSISTENT_FILES,
    not_fingerprinted=frozenset(f"llm.{name}" for name in COST_SETTINGS),
    version=2,  # the gold judge no longer blames a reply for its query
)
