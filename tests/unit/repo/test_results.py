"""Published tables: the page is what the files give, the files say what they were made by, runs can be recorded."""

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepladder.core.answer_metrics import QuestionScore
from stepladder.core.errors import StepladderError
from stepladder.core.trace import StopReason
from stepladder.evaluation.evaluator import Evaluation
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.run_folder import StageRecord, claim
from stepladder.pipeline.stage import EVALUATION
from tests.support import ROOT

sys.path.append(str(ROOT / "benchmarks"))  # scripts, which find each other beside them
build = importlib.import_module("build_results")
record = importlib.import_module("record")
bench = importlib.import_module("run")

FILES = {path.stem: json.loads(path.read_text()) for path in sorted(build.RESULTS.glob("*.json"))}


def example() -> dict[str, Any]:
    """The file that the README shows."""
    text = (ROOT / "benchmarks" / "results" / "README.md").read_text()
    found = re.search(r"```json\n(.*?)```", text, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def wrong(data: dict[str, Any], message: str) -> None:
    with pytest.raises(StepladderError, match=message):
        build.table_of(data, "example.json")


# --- what is published ------------------------------------------------------------------------------------------


def test_the_page_is_what_the_files_give(capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main(["--check"]) == 0, capsys.readouterr().err


def test_every_table_of_the_page_is_built() -> None:
    """But for the first one, of prose: every answer there names its evidence."""
    text = "\n".join(page.read_text() for page in build.PAGES)
    prose = re.sub(r"<!-- table: .*?<!-- end of table -->", "", text, flags=re.DOTALL)
    header, _, *answers = [line for line in prose.splitlines() if line.startswith("|")]
    assert header == "| question | answer | evidence |"
    assert [line[:4].strip("| .") for line in answers] == [str(number) for number in range(1, 11)]
    assert all("](" in line for line in answers)


def numbers_in(value: object) -> Iterator[float]:
    """All numbers of plain data, also those inside texts."""
    match value:
        case dict():
            for each in value.values():
                yield from numbers_in(each)
        case list():
            for each in value:
                yield from numbers_in(each)
        case str():
            yield from map(float, re.findall(r"[+-]?\d+\.\d+", value))
        case int() | float():
            yield value


@pytest.mark.parametrize("name", [name for name, data in FILES.items() if data["source"] is not None])
def test_numbers_of_a_table_are_those_of_its_source(name: str) -> None:
    data = FILES[name]
    known = set(numbers_in(json.loads((ROOT / data["source"]).read_text())))
    labels = {column["cell"] for column in data["columns"] if column["show"] == "text"}
    for row in data["rows"]:
        shown = [value for cell, value in row["cells"].items() if cell not in labels]
        assert set(numbers_in(shown)) <= known


def test_bench_runs_no_tool(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["no such benchmark"]) == 2
    listed = capsys.readouterr().out.split("there are: ")[1].strip().split(", ")
    assert "bm25_speed" in listed
    assert not {"run", "record", "build_results"} & set(listed)


# --- a file -----------------------------------------------------------------------------------------------------


def test_the_example_of_the_readme_is_a_table() -> None:
    assert build.rendered(build.table_of(example(), "example.json")) == (
        "| way | F1 | by seed | gain | tokens |\n"
        "|---|---|---|---|---|\n"
        "| before | 0.610 | 0.610 0.600 0.620 | | |\n"
        "| after | 0.700 | 0.700 0.720 0.680 | +0.090 [+0.050, +0.130] | 1.2M |\n"
    )


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (0.5, "+.3f", "+0.500"),
        (-0.0872, "+.3f", "-0.087"),
        (1_794_710.8, ".2fM", "1.79M"),
        (1600, ".1f", "1,600"),
        (2385.17, ",.0f", "2,385"),
        (0, ".0%", "0%"),
        (3, "+.2f", "+3"),
    ],
)
def test_numbers_are_shown_by_their_format(value: float, form: str, text: str) -> None:
    assert build.number_text(value, form) == text


def test_a_range_goes_from_the_least_to_the_greatest() -> None:
    data = example()
    data["columns"][2] |= {"show": "range", "format": ".2f"}
    assert "| before | 0.610 | 0.60 to 0.62 |" in build.rendered(build.table_of(data, "example.json"))


@pytest.mark.parametrize("field", build.Provenance.model_fields)
def test_what_a_table_was_made_by_must_be_said(field: str) -> None:
    data = example()
    del data["provenance"][field]
    wrong(data, rf"^example.json: row 1: provenance\.{field}: is missing$")


def test_a_line_may_say_what_the_table_does_not() -> None:
    data = example()
    hardware = data["provenance"].pop("hardware")
    for row in data["rows"]:
        row.setdefault("provenance", {})["hardware"] = hardware
    assert build.table_of(data, "example.json").rows[1].provenance["hardware"] == hardware


def test_what_is_not_known_may_be_null_and_nothing_else() -> None:
    data = example()
    data["provenance"] |= {"versions": None, "log": None}
    build.table_of(data, "example.json")
    data["provenance"]["hardware"] = None
    wrong(data, r"row 1: provenance\.hardware: expected a string, found nothing")


def test_mistakes_are_explained() -> None:
    def changed(column: dict[str, Any] | None = None, **cells: Any) -> dict[str, Any]:
        data = example()
        data["rows"][1]["cells"] |= cells
        data["columns"][3] |= column or {}
        return data

    wrong(changed(gain=[0.09, 0.1, 0.13]), r"row 2: gain: expected \[mean, low, high\], found \[0.09, 0.1, 0.13\]")
    wrong(changed(f1=[0.7, 0.72]), r"row 2: f1: expected a list of 3 numbers, one a seed, found \[0.7, 0.72\]")
    wrong(changed(tokens=[1.0]), r"row 2: tokens: expected a number, found \[1.0\]")
    wrong(changed(way="a | b"), "would break the table")
    wrong(changed(way=3), "row 2: way: found 3, but the column has no format or shows text")
    wrong(changed(more=1), r"row 2: expected the cells way, f1, gain, tokens \(an empty one is null\), found way, f1")
    wrong(changed({"format": "three digits"}), "columns.3.format: expected")
    wrong(changed({"shows": "mean"}), "columns.3.shows: unknown key. Did you mean 'show'")
    wrong({**example(), "id": "other"}, "example.json: id: expected 'example', as the file, found 'other'")
    wrong({**example(), "source": "docs/none.json"}, "source: docs/none.json does not exist")


# --- the page ---------------------------------------------------------------------------------------------------


def test_tables_are_written_between_their_markers_and_prose_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "example.json").write_text(json.dumps(example()))
    page = tmp_path / "page.md"
    page.write_text("Before.\n\n<!-- table: example -->\n| old |\n<!-- end of table -->\n\nAfter | this.\n")
    arguments = ["--page", str(page), "--results", str(tmp_path)]
    assert build.main([*arguments, "--check"]) == 1
    assert "is not what the files give: example" in capsys.readouterr().err
    assert "| old |" in page.read_text()
    assert build.main(arguments) == 0
    table = build.rendered(build.table_of(example(), "example.json"))
    begin, end = "Before.\n\n<!-- table: example -->\n\n", "\n<!-- end of table -->\n\nAfter | this.\n"
    assert page.read_text() == begin + table + end
    assert build.main([*arguments, "--check"]) == 0
    (tmp_path / "example.json").write_text("{")
    assert build.main(arguments) == 2
    assert "example.json: expected JSON" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("", "'example' has 0 places on the page, expected one"),
        ("<!-- table: example -->\n<!-- end of table -->\n" * 2, "'example' has 2 places"),
        ("<!-- table: example -->\n", "the page has 1 .* and 0 "),
        ("<!-- table: example -->\n<!-- table: example -->\n<!-- end of table -->\n", "the page has 2 .* and 1 "),
        ("<!-- table: other -->\n<!-- end of table -->\n", "place for the table 'other', but there is no other.json"),
    ],
    ids=["none", "two", "no end", "no end before the next", "no file"],
)
def test_tables_and_places_belong_together(page: str, message: str) -> None:
    with pytest.raises(StepladderError, match=message):
        build.check_places(page, {"example": build.table_of(example(), "example.json")})


# --- runs, recorded ---------------------------------------------------------------------------------------------

SESSION = {
    "started": "2026-01-02T03:04:05+00:00",
    "command": ["/somewhere/stepladder", "run", "example", "--out", "my runs/a"],
    "versions": {"torch": "2.11.0"},
    "git": {"revision": "abc123", "dirty": True},
    "cores": 16,
    "device": "cuda (NVIDIA H200)",
}


def made(path: Path, f1: list[float], session: dict[str, Any] = SESSION, seed: int = 0, **stage: Any) -> str:
    """A run that has evaluated the model it began with."""
    stages = {"after": {"kind": "eval", "policy": "base", "split": "test", **stage}}
    recipe = Recipe.read({"name": "example", "seed": seed, "policy": "tiny", "stages": stages})
    scores = [
        QuestionScore(f"q{number}", "bridge", 1, stop=StopReason.ANSWERED, prediction="x", f1=score)
        for number, score in enumerate(f1)
    ]
    done = StageRecord("after", "eval", "f", {}, {"policy": "base"}, seconds=90.0, outputs={EVALUATION: EVALUATION})
    with claim(path) as run:
        run.add_session(session)
        run.write_recipe(recipe)
        run.begin(done)
        Evaluation(tuple(scores), ()).save(path / "after" / EVALUATION, {})
        run.finish(done)
    return str(path)


def recorded(folder: Path, *runs: str) -> int:
    code: int = record.main(["--id", "mine", "--title", "Mine", "--results", str(folder), "--from", *runs])
    return code


def test_runs_are_recorded_with_what_they_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = [made(tmp_path / f"a{seed}", [1.0, 0.5, 0.0], seed=seed) for seed in (0, 1)]
    later = {**SESSION, "started": "2026-01-03T00:00:00+00:00", "device": "cpu"}
    b = made(tmp_path / "b", [1.0, 1.0, 0.5], later, temperature=0.5)
    assert recorded(tmp_path, *(f"a={run}" for run in a), f"b={b}") == 0
    assert "<!-- table: mine -->\n<!-- end of table -->" in capsys.readouterr().out
    table = build.load_tables(tmp_path)["mine"]
    first, second = (table.provenance_of(row, "") for row in table.rows)
    assert first.command == "stepladder run example --out 'my runs/a'"
    assert (first.recipe, first.seeds) == (("example",), (0, 1))
    assert (first.data, first.split, first.questions) == ("atlas", "test", 3)
    assert (first.hardware, second.hardware) == ("cuda (NVIDIA H200), 16 CPU cores", "cpu, 16 CPU cores")
    assert [str(each.date) for each in (first, second)] == ["2026-01-02", "2026-01-03"]
    assert (first.commit, first.versions) == ("abc123 with changes", {"torch": "2.11.0"})
    assert first.recipe_sha256 != second.recipe_sha256
    assert first.log is not None
    assert first.log.seconds == 180
    assert table.rows[0].cells["f1_by_seed"] == (0.5, 0.5)
    assert table.rows[1].cells["difference"][0] == pytest.approx(1 / 3, abs=1e-6)
    assert "hardware" not in table.provenance  # what lines do not share, they say themselves
    assert "| a | 0.500 [" in build.rendered(table)


def test_what_cannot_be_recorded_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, other = made(tmp_path / "a", [1.0, 0.5]), made(tmp_path / "b", [1.0, 0.5], temperature=0.5)
    silent = made(tmp_path / "c", [1.0, 0.5], {})

    def refused(message: str, *runs: str) -> None:
        assert recorded(tmp_path, *runs) == 2
        assert message in capsys.readouterr().err

    refused("is a saved evaluation", f"{run}/after/{EVALUATION}")
    refused("the line 'x' is of runs that differ by more than their seed", f"x={run}", f"x={other}")
    refused("does not say its command, device, cores, started, versions, git", silent)
    assert recorded(tmp_path, run) == 0
    refused("exists already; say --overwrite", run)
