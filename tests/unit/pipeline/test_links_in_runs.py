"""A run may be somebody else's: links out of it are refused before anything is read or written."""

from pathlib import Path

import pytest

from stepladder.cli import main
from stepladder.core.errors import StepladderError
from stepladder.pipeline.run_folder import RunFolder, claim


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "explore").mkdir(parents=True)
    (folder / "run.json").write_text('{"stepladder_run": 2, "sessions": []}')
    (folder / "recipe.yaml").write_text("name: theirs\nstages: {eval: {policy: oracle, limit: 1}}\n")
    return folder


@pytest.mark.parametrize("name", ["report.html", ".lock", "explore/replies.jsonl", "pairs"])
def test_a_link_out_of_a_run_is_refused(run: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    outside = run.parent / "mine"
    outside.write_text("mine")
    (run / name).symlink_to(outside)
    for command in (["report", "--run", str(run)], ["run", str(run / "recipe.yaml"), "--out", str(run)]):
        assert main(command) == 2
        assert "is a link out of the run" in " ".join(capfd.readouterr().err.split())
    assert outside.read_text() == "mine"


def test_a_link_to_a_file_that_is_missing_is_refused(run: Path) -> None:
    (run / "explore" / "replies.jsonl").symlink_to(run.parent / "new")
    with pytest.raises(StepladderError, match="is a link out of the run"), claim(run):
        pass
    assert not (run.parent / "new").exists()


def test_links_inside_a_run_and_to_it_are_fine(run: Path) -> None:
    (run / "latest").symlink_to("explore")
    (run.parent / "mine").symlink_to(run)
    assert RunFolder.open(run.parent / "mine").recipe().name == "theirs"
