"""`report` writes a run as one HTML file, `tree` shows one of its trees; `compare` and `study` compare results."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from stepladder.cli.declarations import ERR, OUT, argument, given, option, path_option, print_json, say, takes_groups
from stepladder.cli.options import AsJson, RunOptions, RunToRead
from stepladder.cli.recipes import interruptible, output_of
from stepladder.core.errors import StepladderError, nearest
from stepladder.core.io.files import atomic_file
from stepladder.core.io.records import dumps
from stepladder.core.trace import Tree
from stepladder.core.trace_printer import printable
from stepladder.driver.progress import Progress
from stepladder.explore.tree_store import read_trees
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.run_folder import is_run
from stepladder.pipeline.runner import StaleStage, stale_stages
from stepladder.pipeline.stage import TREES
from stepladder.reporting.charts.tree_diagram import tree_svg
from stepladder.reporting.compare import compare_arms, comparison_json, group_by_seed, load_sources, write_comparison
from stepladder.reporting.compare.compare_table import print_comparison
from stepladder.reporting.report import write_report
from stepladder.reporting.studies import built_in_studies, find_study
from stepladder.reporting.studies.jobs.study_job import Job
from stepladder.reporting.studies.study_arms import prepare
from stepladder.reporting.studies.study_json import plain_results
from stepladder.reporting.studies.study_power import plan_power, print_power
from stepladder.reporting.studies.study_registration import register, registered
from stepladder.reporting.studies.study_report import print_results, write_results
from stepladder.reporting.studies.study_results import read_results
from stepladder.reporting.studies.study_runner import Keep, jobs_of, run_study
from stepladder.reporting.tree_text import print_tree


def report_command(
    run: RunToRead,
    out: Annotated[Path | None, path_option("FILE", "Where to write it.", "report.html in the run")] = None,
) -> None:
    """Write an HTML report of a run: results, curves, search trees, transcripts. It works without a network."""
    _check_writable("--out", out)
    path = write_report(run, out)
    say(f"{printable(str(path))}: the report, {path.stat().st_size / 1e6:.1f} MB")


def _check_writable(flag: str, path: Path | None) -> None:
    """Raise if no file can be written at this path."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise StepladderError(f"{flag}: cannot write {path}: give a file in an existing folder")


def compare_command(
    sources: Annotated[
        list[str],
        argument(
            "SOURCES",
            r"Runs, stages of runs and folders of `eval --out` in any mix: \[LABEL=]PATH\[:STAGE]. "
            "Of a run, the last evaluation of its policy is used; :STAGE selects another one, :* all of them. Runs "
            "that differ only in their seed, or have the same label, form one arm.",
        ),
    ],
    metric: Annotated[str, option("NAME", "Metric of the differences: f1, em, searches ...")] = "f1",
    against: Annotated[str | None, option("LABEL", "The reference arm.", "the first")] = None,
    stage: Annotated[
        str | None, option("NAME", "Evaluation to use of runs without :STAGE.", "the last of its policy")
    ] = None,
    sort: Annotated[str | None, option("METRIC", "Sort arms by a metric, highest first.", "as given")] = None,
    html: Annotated[Path | None, path_option("FILE", "Write an HTML page with charts.", "none")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs on their common questions: scores with intervals, paired differences, cost."""
    _check_writable("--html", html)
    compared = compare_arms(group_by_seed(load_sources(sources, stage)), metric, against=against, sort=sort)
    if html is not None or as_json:
        count = len(compared.arms) * (len(compared.arms) - 1) // 2
        with Progress("Differences", count) as watch:
            pairwise = compared.pairwise(watch.advance)
        if html is not None:
            write_comparison(compared, pairwise, html)
        if as_json:
            print_json(comparison_json(compared, pairwise))
    if not as_json:
        print_comparison(OUT, compared)
    if html is not None:
        say(f"{printable(str(html))}: the page", ERR)


@takes_groups
def study_command(
    *,
    study: Annotated[
        str | None,
        argument("STUDY", "A study file (.yaml), or a built-in study.", default="list these"),
    ] = None,
    out: Annotated[Path, path_option("DIR", "Folder of all studies; each has a subfolder.")] = Path("studies"),
    seeds: Annotated[int | None, option("N", "Number of seeds: 0, 1, 2 ...", "those of the study", min=1)] = None,
    jobs: Annotated[int, option("N", "Concurrent runs, which share cores and GPU.", min=1)] = 1,
    keep: Annotated[
        Keep, option("WHAT", "What to keep of a finished run: runs, or only results (kilobytes).")
    ] = "runs",
    model: Annotated[
        str | None,
        option("MODEL", "Model that all runs start from: a name, folder or GGUF file.", "that of the study's recipe"),
    ] = None,
    power: Annotated[
        Path | None,
        path_option(
            "PILOT",
            "Only print how many seeds are needed, from a finished study (folder or study.json), or from a standard "
            "deviation.",
            "none",
        ),
    ] = None,
    slot: Annotated[
        float | None,
        option("MINUTES", "Stop after so many minutes, and begin no run that takes longer.", "none", min=0.1),
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Run nothing: only print what is finished.")] = False,
    options: RunOptions,
) -> None:
    """Compare training methods over several seeds: one recipe, one change each. The same command resumes."""
    if study is None:
        for name in built_in_studies():
            say(f"[bold]{name}[/]: {printable(find_study(name).question)}")
        return
    read = find_study(study)
    planned = prepare(read.model_copy(update=given(seeds=seeds, policy=model)), options.overrides or ())
    if power is not None:
        plan = plan_power(planned, power)
        print_json(plan.plain()) if options.as_json else print_power(OUT, plan)
        return
    path = out / planned.name
    if next((each for each in (path, *path.parents) if each.exists()), path).is_file():
        raise StepladderError(f"--out: {path} cannot be a folder: a file is in the way")
    if show and not path.is_dir():
        raise StepladderError(f"--show: there is no folder {path}: the study was not started here")
    registration = registered(planned, path) if show else register(planned, path)
    failure = None
    if not show:
        update = options.updating()["update"]
        if update and (stale := _stale(job for seed in planned.seed_list for job in jobs_of(planned, path, seed))):
            options.confirm(stale)
        with interruptible():
            try:
                run_study(planned, path, jobs=jobs, update=update, keep=keep, minutes=slot, console=ERR)
            except StepladderError as error:  # the results of the other runs are still shown
                failure = error
    results = read_results(planned, path, registration)
    if failure is not None and not any(arm.values for arm in results.arms):
        raise failure
    chart = write_results(results, path)
    if options.as_json:
        print_json(plain_results(results))
    else:
        print_results(OUT, results)
    if chart is not None and not options.as_json:
        say(f"\nchart: {printable(str(chart))}")
    if failure is not None:
        raise failure


def _stale(jobs: Iterable[Job]) -> list[StaleStage]:
    """The stale stages of all runs of a study, each named with its run."""
    return [
        replace(stage, name=f"{job.name} {stage.name}")
        for job in jobs
        if is_run(job.folder)
        for stage in stale_stages(Recipe.read(job.recipe, job.name), job.folder)
    ]


def tree_command(
    run: RunToRead,
    question_id: Annotated[
        str | None, argument("QUESTION-ID", "The question.", default="the tree with the most right and wrong answers")
    ] = None,
    svg: Annotated[Path | None, path_option("FILE", "Write the tree as SVG.", "print it")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a search tree: its steps, their values and the verdicts of the gold judge."""
    path = output_of(run, TREES)
    tree = find_tree(path, question_id) if question_id is not None else most_instructive_tree(path)
    if svg is not None:
        with atomic_file(svg, what="picture") as file:
            file.write(tree_svg(tree))
    if as_json:
        typer.echo(dumps(tree))
    elif svg is not None:
        say(f"{printable(str(svg))}: the tree of {printable(tree.question.id)}")
    else:
        print_tree(OUT, tree)


def find_tree(path: Path, question_id: str) -> Tree:
    """The tree of a question."""
    ids = []
    for tree in read_trees(path):
        if tree.question.id == question_id:
            return tree
        ids.append(tree.question.id)
    part_of = " or ".join(f"'{each}'" for each in [each for each in ids if question_id in each][:3])
    hint = f" Did you mean {part_of}?" if part_of else nearest(question_id, ids) or f" One of them is {ids[0]}."
    raise StepladderError(f"{path} has no tree of the question '{question_id}', but of {len(ids):,} others.{hint}")


def most_instructive_tree(path: Path) -> Tree:
    """The tree with the most right and wrong answers (the smaller of the two counts), then the fewest nodes."""

    def rank(tree: Tree) -> tuple[int, int]:
        rewards = [node.reward for node in tree.nodes if node.stop is not None and node.stop.has_answer]
        right = sum(reward == 1 for reward in rewards)
        return min(right, len(rewards) - right), -len(tree.nodes)

    tree = max(read_trees(path), key=rank, default=None)
    if tree is None:
        raise StepladderError(f"{path} holds no trees")
    return tree
