"""`ask` answers one question and shows each step; `eval` answers many questions and scores the answers."""

import shlex
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from stepladder.agents import Play
from stepladder.cli.agent_options import AgentOptions, AgentSetup, GuideOptions, SamplingOptions
from stepladder.cli.declarations import (
    ERR,
    OUT,
    OptionGroup,
    argument,
    budget_option,
    given,
    option,
    path_option,
    print_json,
    say,
    takes_groups,
)
from stepladder.cli.options import AsJson, RayOptions, RunPath, Seed
from stepladder.core.answer_metrics import QuestionScore
from stepladder.core.errors import StepladderError
from stepladder.core.io.records import dumps
from stepladder.core.requests import Algorithm
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Question, StopReason, Trajectory
from stepladder.core.trace_printer import TracePrinter, printable
from stepladder.core.version import __version__
from stepladder.data import DataSet
from stepladder.driver import Interrupted
from stepladder.driver.progress import Progress
from stepladder.evaluation.answer_judge import Agreement, judge_answers
from stepladder.evaluation.evaluator import (
    Evaluation,
    check_output_folder,
    check_played,
    compare,
    evaluate,
    load_scores,
)
from stepladder.explore.episode import watch_states
from stepladder.judges.llm.config import LLMJudgeConfig
from stepladder.pipeline.episodes import report_gold
from stepladder.pipeline.resources import ORACLE, RunContext
from stepladder.pipeline.run_folder import is_run
from stepladder.pipeline.workers.rollout_workers import check_cluster
from stepladder.reporting.eval_table import UPPER_BOUND, comparison_line, print_summary
from stepladder.retrieval.factory import retriever_info


@takes_groups
def ask_command(
    *,
    question: Annotated[str | None, argument("QUESTION", "The question.", default="an example from the data")] = None,
    run: RunPath = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    options: AgentOptions,
    sampling: SamplingOptions,
    guided: GuideOptions,
) -> None:
    """Answer one question and show each step."""
    if question is not None and run is None and is_run(Path(question)):
        raise StepladderError(f"the run is given with --run: {shlex.join(['stepladder', 'ask', '--run', question])}")
    setup = AgentSetup.from_options(run, options, sampling, guided)
    index = setup.context.settings.data.index
    if index is not None and question is None and run is None and options.data is None:
        _check_corpus(setup.context, index, "give a question, or ")
    own_corpus = index is not None and question is not None and setup.engine != ORACLE
    chosen = _find_question(question, None if own_corpus else setup.context.data, setup.engine)
    if setup.guide is not None and setup.guide.by == "gold" and not chosen.answers:
        raise StepladderError("--guide gold can only judge questions of the data set, and this is not one of them")
    printer = TracePrinter(ERR if as_json else OUT)
    printer.question(chosen)
    if run is None and options.data is None and setup.context.agent.searches:
        _note_mixed_sources(own_question=not chosen.answers, own_corpus=index is not None)

    def job() -> Algorithm[Trajectory]:
        answer = setup.answer(chosen, seed_of(seed, chosen.id))
        return watch_states(answer, printer.show) if setup.streams else answer

    with setup.driver() as driver:
        (outcome,) = driver.run([job])
    if outcome.failure is not None:
        raise StepladderError(outcome.failure.reason)
    assert outcome.value is not None
    printer.show(outcome.value)
    if as_json:
        mark = '{"upper_bound":true,' if setup.upper_bound else "{"
        typer.echo(mark + dumps(outcome.value)[1:])


@dataclass(frozen=True, slots=True)
class SavedOptions(OptionGroup):
    """Where an evaluation is saved."""

    out: Annotated[Path | None, path_option("DIR", "Save summary, scores and trajectories here.", "not saved")] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing evaluation.")] = False


@dataclass(frozen=True, slots=True)
class AnswerJudgeOptions(OptionGroup):
    """An LLM that grades the answers."""

    panel = "Language model as judge of the answers"

    answer_judge: Annotated[
        str | None,
        option("NAME", "An LLM that grades the answers: its name on a server, or a local model folder.", "no LLM"),
    ] = None
    answer_judge_url: Annotated[str | None, option("URL", "URL of its OpenAI-compatible server.", "OpenAI's")] = None
    budget: Annotated[str | None, budget_option("With --out: its hard spending limit, 5usd or 2Mtok.")] = None

    def judge(self, out: Path | None, prices: Path | None) -> LLMJudgeConfig | None:
        """Its settings, checked before anything is played; None without one."""
        if self.answer_judge is None:
            for name in self.typed():
                raise StepladderError(f"--{name.replace('_', '-')} needs an --answer-judge")
            return None
        if self.budget is not None and out is None:
            raise StepladderError("--budget needs --out DIR: verdicts and spend are kept beside it, in DIR.paid")
        typed = given(model=self.answer_judge, url=self.answer_judge_url, budget=self.budget, prices=prices)
        judge = LLMJudgeConfig.read(typed, "--answer-judge")
        judge.check()
        return judge


@takes_groups
def eval_command(
    *,
    run: RunPath = None,
    split: Annotated[str | None, option("NAME", "train, dev or test.", "test, or the only one")] = None,
    limit: Annotated[int | None, option("N", "Only the first questions.", "all", min=1)] = None,
    seed: Seed = 0,
    saved: SavedOptions,
    against: Annotated[Path | None, path_option("DIR", "A saved evaluation to compare with, paired.", "none")] = None,
    as_json: AsJson = False,
    grading: AnswerJudgeOptions,
    options: AgentOptions,
    sampling: SamplingOptions,
    guided: GuideOptions,
    cluster: RayOptions,
) -> None:
    """Answer the questions of a split and score the answers, with 95% confidence intervals."""
    out, overwrite = saved.out, saved.overwrite
    typed = {"out": out, "overwrite": overwrite or None, "answer_judge": grading.answer_judge}
    setup = AgentSetup.from_options(run, options, sampling, guided, **typed, **cluster.settings())
    context, shared = setup.context, setup.context.settings
    if out is not None:
        check_output_folder(out, overwrite=overwrite)
    judge = grading.judge(out, options.prices)
    other = load_scores(against) if against is not None else None
    split = split or _default_split(context.data)
    questions = context.split(split)[:limit]
    data_name = options.data or shared.data.name or context.data.name
    if other is not None and _reached(other).isdisjoint(question.id for question in questions):
        raise StepladderError(f"{against} is of other questions: it has none of {data_name} {split}")
    check_cluster(context)
    index = shared.data.index
    if index is not None and run is None and options.data is None:
        _check_corpus(context, index)
    index_info = retriever_info(index) if index is not None else None  # now: a server may be gone after the evaluation
    report_gold(context, questions, labels=setup.guide is not None and setup.guide.by == "gold")
    # Beside the evaluation, which is written at the end: a run that was killed has paid for its replies.
    paid = out.with_name(f"{out.name}.paid") if out is not None else None
    with setup.driver(folder=paid) as driver, Progress("Evaluating", len(questions)) as watch:
        guide = setup.guide.guide(setup.reward) if setup.guide is not None else None
        result = evaluate(driver, context.agent, questions, setup.episode, guide=guide, seed=seed, watch=watch)
    agreement: Agreement | None = None
    no_verdicts: StepladderError | Interrupted | None = None
    if judge is not None and result.stopped_by is None:
        try:
            result, agreement = _judged(judge, result, questions, paid, shared.device)
        except (StepladderError, Interrupted) as error:  # the episodes must not be lost with the judge
            no_verdicts = error
    summary = result.summary()
    description = {
        "agent": shared.agent,
        "engine": setup.engine,
        "model": setup.model,
        "policy_reason": None if setup.choice is None else str(setup.choice),
        "base_url": options.base_url and ", ".join(options.base_url),
        "api": options.api or "chat",
        "device": shared.device,
        "dtype": shared.dtype,
        "data": data_name,
        "split": split,
        "limit": limit,
        "index": index and {"place": index, "checksum": index_info and index_info.checksum},
        "seed": seed,
        "world_seed": shared.data.world_seed,
        "settings": asdict(setup.episode),
        **({"prompting": asdict(context.agent.play)} if context.agent.play != Play() else {}),
        "guide": setup.guide and {**setup.guide.describe(), "reward": setup.reward},
        "version": __version__,
        **({"answer_judge": grading.answer_judge, "agreement": asdict(agreement)} if agreement is not None else {}),
    }
    comparisons = {}
    if other is not None and not _reached(result.scores).isdisjoint(_reached(other)):
        comparisons = {metric: compare(result.scores, other, metric) for metric in ("em", "f1")}
    try:  # neither an error while saving nor one while printing loses the other
        if out is not None:
            result.save(out, description, overwrite=overwrite)
            missing = "not all questions" if result.stopped_by else "without verdicts" if no_verdicts else ""
            again = f", {missing}: add --overwrite to the same command to go on" if missing else ""
            say(f"written to {printable(str(out))}{again}", ERR)
    finally:
        if as_json:
            versus = {"against": {name: asdict(each) for name, each in comparisons.items()}} if comparisons else {}
            print_json({**result.as_json(description), **versus})
        else:
            policy = f"{setup.model or setup.engine}{UPPER_BOUND if result.upper_bound else ''}"
            print_summary(OUT, summary, f"{shared.agent} by {policy} on {data_name} {split}")
            if agreement is not None:
                OUT.print(agreement.line(), highlight=False)
            for metric, comparison in comparisons.items():
                OUT.print(comparison_line(comparison, metric), highlight=False)
    if (stopped := result.stopped_by or no_verdicts) is not None:
        raise stopped
    check_played(result.scores)


def _judged(
    judge: LLMJudgeConfig, result: Evaluation, questions: Sequence[Question], folder: Path | None, device: str
) -> tuple[Evaluation, Agreement]:
    """The evaluation with the judge's verdicts, which are kept in the folder, if there is one."""
    with TemporaryDirectory() as temporary, closing(judge.open_engine(folder or Path(temporary), device)) as engine:
        answers = sum(row.prediction is not None for row in result.scores)
        with Progress("Judging answers", answers, note=lambda: engine.spend().line()) as watch:
            return judge_answers(result, questions, engine, watch)


def _reached(rows: Iterable[QuestionScore]) -> set[str]:
    """Ids of the questions that were not cancelled."""
    return {row.question_id for row in rows if row.stop is not StopReason.CANCELLED}


def _default_split(data: DataSet) -> str:
    """The split to evaluate without --split: test, or the only one."""
    if "test" in data.questions:
        return "test"
    first, *others = data.questions
    if others:
        raise StepladderError(f"{data.name} has no test split: add --split {' or '.join((first, *others))}")
    return first


def _check_corpus(context: RunContext, index: str, advice: str = "") -> None:
    """Raise if the index has no passage of the default data set: its questions could not be answered."""
    passages = context.data.passages
    if context.retriever is None or not passages:
        return
    texts = {passage.text for passage in passages}
    found = context.retriever.search([passage.title for passage in passages[:8]], 1)
    if not any(passage.text in texts for passages in found for passage in passages):
        raise StepladderError(
            f"without --data the questions are those of {context.data.name}, and {index} has none of its passages: "
            f"{advice}add --data FILE with your own questions (--data {context.data.name} uses these anyway)"
        )


def _note_mixed_sources(*, own_question: bool, own_corpus: bool) -> None:
    """Print a note if only one of question and corpus is the user's own, and the other is from Atlas."""
    if own_question == own_corpus:
        return
    note = "Searching Atlas, the generated encyclopedia included in Stepladder; --index searches your own corpus"
    if own_corpus:
        note = "The question is from Atlas, the generated encyclopedia included in Stepladder; the corpus is your own"
    say(f"[dim]{note}[/]", ERR)


def _find_question(text: str | None, data: DataSet | None, engine: str) -> Question:
    """The question of the data set with this text or id, the first one without a text, or else a new question."""
    if text is not None and not text.strip():
        raise StepladderError("the question is empty")
    if text is None:
        assert data is not None
        return data.questions["test" if "test" in data.questions else next(iter(data.questions))][0]
    for question in (each for split in data.questions.values() for each in split) if data is not None else ():
        if text in (question.text, question.id):
            return question
    if engine == ORACLE:
        assert data is not None
        raise StepladderError(
            f"the oracle can only answer questions of {data.name}, and {text!r} is not one of them. Leave the question "
            "out for an example, or give a model: --model FOLDER"
        )
    return Question("asked", text, ())
