"""`report` writes a run as one HTML file, `compare` compares runs and saved evaluations, `study` compares methods."""

import json
from pathlib import Path
from typing import Annotated

import typer

from stepladder.cli.declarations import (
    ERR,
    OUT,
    argument,
    check_writable_file,
    number_option,
    option,
    path_of,
    path_option,
    say,
)
from stepladder.cli.options import AsJson, Overrides, Update
from stepladder.cli.recipes import interruptible
from stepladder.core.errors import StepladderError
from stepladder.core.trace_printer import printable
from stepladder.reporting.report import write_report
from stepladder.reporting.studies import STUDIES, find_study
from stepladder.reporting.studies.study_report import print_results, write_results
from stepladder.reporting.studies.study_results import read_results
from stepladder.reporting.studies.study_runner import run_study


def report_command(
    run: Annotated[Path, argument("RUN", "A run, finished or not.", parser=path_of)],
    out: Annotated[Path | None, path_option("--out", "FILE", "Where to write it.", default="RUN/report.html")] = None,
) -> None:
    """Write an HTML report of a run: results, curves, search trees, transcripts. It works without a network."""
    check_writable_file("--out", out)
    path = write_report(run, out)
    say(f"{printable(str(path))}: the report, {path.stat().st_size / 1e6:.1f} MB")


def compare_command(
    runs: Annotated[
        list[str],
        argument(
            "RUN",
            r"Runs, or folders of `eval --out`: \[LABEL=]PATH\[:STAGE]. Of a run, the last evaluation of its "
            "policy is used; :STAGE selects another one, :* all of them. Runs that differ only in their seed, or have "
            "the same label, form one arm.",
        ),
    ],
    metric: Annotated[str, option("--metric", "NAME", "Metric of the differences: f1, em, searches ...")] = "f1",
    against: Annotated[str | None, option("--against", "LABEL", "The reference arm.", default="the first")] = None,
    stage: Annotated[str | None, option("--stage", "NAME", "Evaluation to use of runs without :STAGE.")] = None,
    sort: Annotated[str | None, option("--sort", "METRIC", "Sort arms by a metric, highest first.")] = None,
    html: Annotated[Path | None, path_option("--html", "FILE", "Write an HTML page with charts.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs on their common questions: scores with intervals, paired differences, cost."""
    from stepladder.driver.progress import Progress
    from stepladder.reporting.compare import (
        compare_arms,
        comparison_json,
        group_by_seed,
        load_sources,
        write_comparison,
    )
    from stepladder.reporting.compare.compare_table import print_comparison

    check_writable_file("--html", html)
    compared = compare_arms(group_by_seed(load_sources(runs, stage)), metric, against=against, sort=sort)
    if html is not None or as_json:
        count = len(compared.arms) * (len(compared.arms) - 1) // 2
        with Progress("Differences", count) as watch:
            pairwise = compared.pairwise(watch.advance)
        if html is not None:
            write_comparison(compared, pairwise, html)
        if as_json:
            typer.echo(json.dumps(comparison_json(compared, pairwise), indent=2))
    if not as_json:
        print_comparison(OUT, compared)
    if html is not None:
        say(f"{printable(str(html))}: the page", ERR)


def study_command(
    name: Annotated[str | None, argument("NAME", "The study.", default="list all of them")] = None,
    folder: Annotated[Path, path_option("--out", "DIR", "Folder of all studies; each has a subfolder.")] = Path(
        "studies"
    ),
    seeds: Annotated[int, number_option("--seeds", "Number of seeds: 0, 1, 2 ...", min=1)] = 5,
    jobs: Annotated[int, number_option("--jobs", "Concurrent runs, which share cores and GPU.", min=1)] = 1,
    overrides: Overrides = None,
    update: Update = False,
    as_json: AsJson = False,
) -> None:
    """Compare training methods over several seeds: one recipe, one change each. The same command resumes."""
    if name is None:
        for each in STUDIES.values():
            say(f"[bold]{each.name}[/]: {printable(each.about)}")
        return
    study = find_study(name)
    path = folder / study.name
    if next((each for each in (path, *path.parents) if each.exists()), path).is_file():
        raise StepladderError(f"--out: {path} cannot be a folder: a file is in the way")
    with interruptible():
        run_study(study, path, seeds=range(seeds), jobs=jobs, overrides=overrides or (), update=update, console=ERR)
    results = read_results(study, path, range(seeds))
    chart = write_results(results, path)
    if as_json:
        typer.echo(json.dumps(results.plain(), indent=2))
        return
    print_results(OUT, results)
    if chart is not None:
        say(f"\nchart: {printable(str(chart))}")
