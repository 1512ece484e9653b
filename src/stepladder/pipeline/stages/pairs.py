"""The stage `pairs`: preference pairs from search trees, by preferences/ and judges/.

In: trees. Out: a folder with `train.jsonl` and `dev.jsonl`, one pair per line, split by question, and `stats.json`.
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

    def make_judge(self) -> Judge:
        """The judge with its settings."""
        return make_judge(self.judge, JudgeOptions(self.margin, self.decay, self.llm))


def run_pairs(settings: PairConfig, context: RunContext, task: Task) -> StageResult:
    """Judge the siblings of every tree, balance the pairs, write them."""
    judge = settings.make_judge()
    with TemporaryFile("w+b", dir=task.folder) as buffer:
        found = _judge_trees(settings, judge, context, task, buffer)
        kept = _balance(found.pairs, settings, task.seed)
        if not kept:
            raise StepladderError(f"{task.name}: {_no_pairs(settings, found)}")
        held_out = dev_questions(found.questions, settings.dev_share)
        if held_out.issuperset(pair.question_id for pair in kept):  # there must be training pairs
            held_out = frozenset()
        stats = PairStats()
        counts: Counter[str] = Counter()
        with atomic_folder(task.folder / PAIRS, what="pairs") as folder:
            with (folder / TRAIN_PAIRS).open("wb") as train, (folder / DEV_PAIRS).open("wb") as dev:
                for pair in kept:
                    line = pair.line(buffer)
                    stats.add(loads(line.decode(), Pair))
                    split = "dev" if pair.question_id in held_out else "train"
                    counts[split] += 1
                    (dev if split == "dev" else train).write(line)
            summary = {
                **stats.summary(),
                "train": counts["train"],
                "dev": counts["dev"],
                "judge": judge.name,
                "dropped": _by_count(found.dropped + Counter(balance=len(found.pairs) - len(kept))),
                **found.judged,
            }
            (folder / PAIR_STATS).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return StageResult(summary, {PAIRS: task.folder / PAIRS})


@dataclass(frozen=True, slots=True)
class _BufferedPair:
    """The position of a pair in the buffer file, and the properties that pairs are balanced by."""

    tree: int
    start: int
    length: int
    question_id: str
    kind: str
    depth: int

    def line(self, buffer: IO[bytes]) -> bytes:
        buffer.seek(self.start)
        return buffer.read(self.length)


@dataclass(slots=True)
class _AllPairs:
    """The pairs of all trees."""

    #: In the order of the trees, regardless of the order in which the judge finished them.
    pairs: list[_BufferedPair] = field(default_factory=list)
    #: Ids of the questions of the trees.
    questions: list[str] = field(default_factory=list)
    #: Number of preferences that did not become a pair, by reason.
    dropped: Counter[str] = field(default_factory=Counter)
    #: Summary of an LLM judge.
    judged: dict[str, Any] = field(default_factory=dict)


def _judge_trees(settings: PairConfig, judge: Judge, context: RunContext, task: Task, buffer: IO[bytes]) -> _AllPairs:
    """The pairs of all trees, in a buffer file because they may not fit into memory."""
    trees = Path(task.inputs[TREES])
    found = _AllPairs()

    def jobs() -> Iterator[Callable[[], Algorithm[TreePairs]]]:
        for tree in read_trees(trees):
            found.questions.append(tree.question.id)
            yield partial(tree_pairs, tree, judge, settings)

    llm = settings.llm
    opened = nullcontext() if llm is None else closing(llm.open_engine(task.folder, context.settings.device))
    with opened as engine:
        driver = Driver(engine, in_flight=_CONCURRENT_TREES)
        note = None if engine is None else lambda: engine.spend().line()
        with Progress(task.name, count_trees(trees), note=note) as watch:
            for outcome in driver.stream(jobs()):
                if outcome.value is None:
                    assert outcome.failure is not None
                    raise StepladderError(f"{task.name}: {outcome.failure.reason}")
                found.dropped.update(outcome.value.dropped)
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


def _balance(pairs: list[_BufferedPair], settings: PairConfig, seed: int) -> list[_BufferedPair]:
    """The pairs that are kept."""
    if not settings.balance:
        return pairs
    groups = [tuple(getattr(pair, name) for name in settings.balance) for pair in pairs]
    return [pairs[index] for index in balanced(groups, seed)]


def _no_pairs(settings: PairConfig, found: _AllPairs) -> str:
    """Why there are no pairs, and what to do about it."""
    dropped = format_counts(_by_count(found.dropped)) or "nothing"
    if found.judged:
        problem = next(iter(found.judged["problems"]), None)
        reason = "" if problem is None else f"; most common problem: {problem}"
        asked = format_counts(found.judged["asked"])
        return f"the LLM found no pair in the trees ({asked}; dropped: {dropped}{reason})"
    advice = judges().get(settings.judge).advice
    return f"judge '{settings.judge}' found no pair in the trees (dropped: {dropped}). {advice}"


def _by_count(counts: Counter[str]) -> dict[str, int]:
    """Sorted by count, then by name: independent of the order of counting."""
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))


def count_trees(path: Path) -> int:
    """The number of trees in a file."""
    with gzip.open(path) as lines:
        return sum(1 for _ in lines)


def dry_run(settings: PairConfig, trees: Path, folder: Path) -> "Estimate":
    """The cost of the judge, without the responses that the folder has cached."""
    if settings.llm is None:
        raise StepladderError(f"judge '{settings.judge}' costs nothing: there is nothing to estimate")
    from stepladder.judges.llm.spend.estimate import estimate  # imports openai

    groups = ((tree, siblings) for tree in read_trees(trees) for _, siblings in judged_groups(tree, settings))
    return estimate(settings.llm.judge(), groups, settings.llm.price(), settings.llm.cached_responses(folder))


def check_pairs(settings: PairConfig, context: RunContext) -> None:  # noqa: ARG001
    """A paid LLM must have a price."""
    if settings.llm is not None:
        settings.llm.check()


STAGE = StageSpec(
    PairConfig,
    run_pairs,
    (TREES,),
    (PAIRS,),
    check=check_pairs,
    persistent_files=PERSISTENT_FILES,
    not_fingerprinted=frozenset(f"llm.{name}" for name in COST_SETTINGS),
    version=2,  # the gold judge no longer counts a bad query against the answer to it
    questions=no_questions,
    generates=never,
)
