"""The stage `pairs`: preference pairs from search trees, by preferences/ and judges/.

In: trees. Out: a folder with `train.jsonl` and `dev.jsonl`, one pair per line, split by question, and `stats.json`.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from stepladder.core.errors import StepladderError
from stepladder.core.io.records import dumps, loads
from stepladder.core.trace import Pair
from stepladder.driver import Driver
from stepladder.driver.progress import Progress
from stepladder.explore.tree_store import read_trees
from stepladder.judges.base import Judge, JudgeOptions
from stepladder.judges.llm.config import COST_SETTINGS, PERSISTENT_FILES, LLMJudgeConfig
from stepladder.judges.llm.llm_judge import LLMJudge
from stepladder.judges.registry import JudgeName, judges, make_judge
from stepladder.pipeline.episodes import check_gold
from stepladder.pipeline.pair_folder import DEV_PAIRS, PAIR_PERSISTENT_FILES, TRAIN_PAIRS, write_pairs
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.stage import (
    PAIRS,
    TREES,
    FinishedStage,
    Labels,
    StageResult,
    StageSpec,
    Task,
    never,
    no_questions,
    tree_questions,
)
from stepladder.preferences.pair_stats import format_counts
from stepladder.preferences.pairs import PairRules, balanced, dev_questions, judged_groups, tree_pairs

if TYPE_CHECKING:
    from stepladder.judges.llm.estimate import Estimate

#: Trees whose gold passages are looked for in the index.
_CHECKED_TREES = 1000
#: Concurrent trees, for judges that generate text.
_CONCURRENT_TREES = 64


class PairConfig(PairRules):
    """The judge, what makes a pair, and which pairs are kept."""

    #: A value (spre, mc, or q, the search's own), the scores of the stage `rank` (rank), or a judge (gold, llm).
    judge: JudgeName = "spre"
    #: Minimum difference of two values, which are between 0 and 1.
    margin: float = Field(default=0.01, gt=0, le=1)
    #: With judge `llm`: the model, its mode and its budget.
    llm: LLMJudgeConfig | None = None
    #: Downsample groups of pairs to the size of the median group: by kind of the chosen action, by depth, or by both.
    balance: tuple[Literal["kind", "depth"], ...] = ()
    #: Share of the explored questions whose pairs are held out.
    dev_share: float = Field(default=0.1, ge=0, lt=1)

    @model_validator(mode="after")
    def _llm_and_its_settings(self) -> "PairConfig":
        if judges().get(self.judge).uses_llm != (self.llm is not None):
            raise ValueError("judge: llm and the settings of the model (llm.model) must be given together")
        return self

    def unused(self) -> Mapping[str, str]:
        """The margin, for judges without values."""
        spec, better = judges().get(self.judge), " (its own is llm.score_margin)" if self.judge == "llm" else ""
        return {} if spec.uses_margin else {"margin": f"with judge: {self.judge}, which compares no values{better}"}

    def make_judge(self) -> Judge:
        """The judge with its settings."""
        return make_judge(self.judge, JudgeOptions(self.margin, self.decay, self.llm, self.derived))


def run_pairs(settings: PairConfig, context: RunContext, task: Task) -> StageResult:
    """Judge the siblings of every tree, balance the pairs, write them."""
    judge = settings.make_judge()
    with TemporaryFile("w+b", dir=task.folder) as buffer:
        found = _judge_trees(settings, judge, context, task, buffer)
        kept = found.pairs
        if settings.balance:
            groups = [tuple(getattr(pair, name) for name in settings.balance) for pair in kept]
            kept = [kept[index] for index in balanced(groups, task.seed)]
        if not kept:
            raise StepladderError(f"{task.name}: {_no_pairs(settings, found)}")
        held_out = dev_questions(found.questions, settings.dev_share)
        if held_out.issuperset(pair.question_id for pair in kept):  # there must be training pairs
            held_out = frozenset()
        split = ((DEV_PAIRS if pair.question_id in held_out else TRAIN_PAIRS, pair.load(buffer)) for pair in kept)
        dropped = _by_count(found.dropped + Counter(balance=len(found.pairs) - len(kept)))
        return write_pairs(task, split, task.inputs[TREES], judge=judge.name, dropped=dropped, **found.judged)


@dataclass(frozen=True, slots=True)
class _BufferedPair:
    """The position of a pair in the buffer file, and the properties that pairs are balanced by."""

    tree: int
    start: int
    length: int
    question_id: str
    kind: str
    depth: int

    def load(self, buffer: IO[bytes]) -> Pair:
        buffer.seek(self.start)
        return loads(buffer.read(self.length).decode(), Pair)


@dataclass(slots=True)
class _AllPairs:
    """The pairs of all trees."""

    #: Ids of the questions of the trees.
    questions: list[str]
    #: In the order of the trees, regardless of the order in which the judge finished them.
    pairs: list[_BufferedPair] = field(default_factory=list)
    #: Number of preferences that did not become a pair, by reason.
    dropped: Counter[str] = field(default_factory=Counter)
    #: States whose steps were compared, and how many of these steps the gold judge could grade.
    states: int = 0
    graded: int = 0
    #: Summary of an LLM judge.
    judged: dict[str, Any] = field(default_factory=dict)


def _judge_trees(settings: PairConfig, judge: Judge, context: RunContext, task: Task, buffer: IO[bytes]) -> _AllPairs:
    """The pairs of all trees, in a buffer file because they may not fit into memory."""
    trees = Path(task.inputs[TREES])
    found = _AllPairs(tree_questions(trees))
    if judges().get(settings.judge).needs_gold:
        check_gold(context, [tree.question for tree in islice(read_trees(trees), _CHECKED_TREES)])
    jobs = (partial(tree_pairs, tree, judge, settings) for tree in read_trees(trees))
    llm = settings.llm
    opened = nullcontext() if llm is None else closing(llm.open_engine(task.folder, context.settings.device))
    with opened as engine:
        driver = Driver(engine, in_flight=_CONCURRENT_TREES)
        note = None if engine is None else lambda: engine.spend().line()
        with Progress(task.name, len(found.questions), note=note) as watch:
            for outcome in driver.stream(jobs):
                if outcome.value is None:
                    assert outcome.failure is not None
                    raise StepladderError(f"{task.name}: {outcome.failure.reason}")
                found.dropped.update(outcome.value.dropped)
                found.states += outcome.value.states
                found.graded += outcome.value.graded
                for pair in outcome.value.pairs:
                    line = (dumps(pair) + "\n").encode()
                    kind = pair.chosen.action.kind.value
                    found.pairs.append(
                        _BufferedPair(outcome.index, buffer.tell(), len(line), pair.question_id, kind, pair.depth)
                    )
                    buffer.write(line)
                watch(outcome)
        if engine is not None and isinstance(judge, LLMJudge):
            found.judged = {**judge.summary(), "spend": asdict(engine.spend())}
    found.pairs.sort(key=lambda pair: pair.tree)
    return found


def _no_pairs(settings: PairConfig, found: _AllPairs) -> str:
    """Why there are no pairs, and what to do about it."""
    spec = judges().get(settings.judge)
    compared = f"no pairs in {len(found.questions):,} trees, where {found.states:,} states have steps to compare"
    if found.judged:
        problem = "".join(f"; most common problem: {each}" for each in list(found.judged["problems"])[:1])
        return f"{compared}: the LLM judge {format_counts({**found.judged['asked'], **found.dropped})}{problem}"
    if found.dropped:
        return f"{compared}: every preference was dropped ({format_counts(_by_count(found.dropped))}). {spec.advice}"
    if not found.states:
        wrote = "in all others the policy wrote one step only, or nothing well formed. Train it longer"
        return f"{compared}: {wrote}. {spec.advice}"
    if spec.needs_gold and not found.graded:
        return f"{compared}, none of them graded: judge '{settings.judge}' needs questions with a gold decomposition"
    differ = "in verdict" if spec.needs_gold else f"in value by the margin, {settings.margin:g}"
    return (
        f"{compared}, but in none of them do two steps differ {differ}. A policy that is hardly trained answers "
        f"everything equally wrong: train it longer. {spec.advice}"
    )


def _by_count(counts: Counter[str]) -> dict[str, int]:
    """Sorted by count, then by name: independent of the order of counting."""
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))


def dry_run(settings: PairConfig, trees: Path, folder: Path) -> "Estimate":
    """The cost of the judge, without the responses that the folder has cached."""
    if settings.llm is None:
        raise StepladderError(f"judge '{settings.judge}' costs nothing: there is nothing to estimate")
    from stepladder.judges.llm.estimate import estimate

    groups = ((tree, siblings) for tree in read_trees(trees) for _, siblings in judged_groups(tree, settings))
    return estimate(settings.llm.judge(), groups, settings.llm.price(), settings.llm.cached_responses(folder))


def check_pairs(settings: PairConfig, context: RunContext) -> None:  # noqa: ARG001
    """A paid LLM must have a price."""
    if settings.llm is not None:
        settings.llm.check()


def labels_used(stage: FinishedStage) -> Labels:
    """What the judge sees: the gold judge answers and decompositions, an LLM in the mode `value` the answers."""
    settings: PairConfig = stage.settings
    gold = judges().get(settings.judge).needs_gold
    if gold or (settings.llm is not None and settings.llm.mode == "value"):
        return Labels.of(tree_questions(stage.inputs[TREES]), decompositions=gold)
    return Labels()


STAGE = StageSpec(
    PairConfig,
    run_pairs,
    (TREES,),
    (PAIRS,),
    check=check_pairs,
    persistent_files=(*PERSISTENT_FILES, *PAIR_PERSISTENT_FILES),
    not_fingerprinted=frozenset(f"llm.{name}" for name in COST_SETTINGS),
    version=2,  # the gold judge no longer counts a bad query against the answer to it
    questions=no_questions,
    labels=labels_used,
    generates=never,
)
