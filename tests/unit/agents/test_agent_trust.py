"""Code runs only when its user names it: what a run, a recipe or an adapter names is data."""

import json
import os
import py_compile
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import torch

import stepladder as sl
from stepladder.agents import agent_trust, make_agent, name_agent
from stepladder.core.errors import StepladderError
from stepladder.core.io.records import write_records
from stepladder.core.io.user_lists import user_list
from stepladder.core.trace import Node, Tree
from stepladder.explore.tree_store import TreeFile
from stepladder.models.tiny import tiny_model, tiny_tokenizer
from stepladder.pipeline import run_recipe
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.run_folder import RunFolder, StageRecord
from stepladder.reporting.studies.jobs.job_processes import COMMAND
from stepladder.reporting.studies.jobs.study_job import Job, run_job
from tests.support import ROOT
from tests.support.prm_training import pair
from tests.support.samples import QUESTION
from tests.support.shell import Shell, shell

__all__ = ["shell"]

ORACLE = {"oracle": {"kind": "eval", "policy": "oracle", "limit": 1}}


@pytest.fixture(autouse=True)
def _new_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A user who has named and trusted nothing yet. Nothing may wait for ever."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(agent_trust, "_named", set())
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    """An agent file that leaves a trace when it is executed."""
    path = tmp_path / "theirs.py"
    trace = f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n"
    path.write_text((ROOT / "examples" / "self_ask.py").read_text() + trace)
    return path


@pytest.fixture
def downloaded(tmp_path: Path, agent: Path) -> Path:
    """A run folder that somebody else made."""
    folder = tmp_path / "run"
    folder.mkdir()
    run = RunFolder(folder)
    run.add_session({})
    run.write_recipe(Recipe.read({"agent": str(agent), "data": {"name": "atlas-small"}, "stages": ORACLE}))
    return folder


def another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_trust, "_named", set())


@pytest.mark.parametrize(
    "command",
    [
        "ask --engine oracle --run RUN",
        "eval --engine oracle --limit 1 --run RUN",
        "serve-agent --model tiny --port 0 --run RUN",
        "explore --questions 1 --set policy=oracle --run RUN",
        "run RUN/recipe.yaml --out RUN",
        "run RUN/recipe.yaml --out NEW",
    ],
)
def test_a_run_does_not_execute_the_agent_file_that_it_names(
    shell: Shell, tmp_path: Path, agent: Path, downloaded: Path, command: str
) -> None:
    words = command.replace("RUN", str(downloaded)).replace("NEW", str(tmp_path / "new")).split()
    refused = shell(*words, code=2).splitlines()[-1]
    assert not (tmp_path / "ran").exists()
    assert f"the agent file {agent} was not executed" in refused
    assert f"add --agent {agent}" in refused
    assert sha256(agent.read_bytes()).hexdigest() in refused


@pytest.mark.parametrize(
    "command",
    [
        "ask --engine oracle --run RUN --agent FILE",
        "explore --questions 1 --simulations 1 --set policy=oracle --run RUN --agent FILE",
        "run RUN/recipe.yaml --out RUN --agent FILE",
        "run RUN/recipe.yaml --out RUN --set agent=FILE",
    ],
)
def test_an_agent_file_runs_when_its_user_names_it_and_later_only_if_it_is_trusted(
    shell: Shell, agent: Path, downloaded: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(agent.parent)
    words = command.replace("RUN", str(downloaded)).replace("FILE", agent.name).split()
    shell(*words)
    ask = ("ask", "--engine", "oracle", "--run", downloaded)
    another_process(monkeypatch)
    shell(*ask, code=2)
    shell(*words, "--trust-agent")
    another_process(monkeypatch)
    shell(*ask)


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("command", ["ask", "eval --limit 1", "serve-agent --port 0"])
def test_an_adapter_names_built_in_agents_only(
    shell: Shell, tmp_path: Path, agent: Path, command: str, trust: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_agent(agent, trust=trust)
    another_process(monkeypatch)
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "nano"}))
    (folder / "stepladder.json").write_text(json.dumps({"agent": str(agent)}))
    refused = shell(*command.split(), "--model", folder, code=2)
    assert f"names the agent file {agent}: --agent {agent} runs its code" in refused
    with pytest.raises(StepladderError, match="names the agent file"):
        sl.load_policy(folder)
    assert not (tmp_path / "ran").exists()


def test_trust_is_in_one_path_with_one_content(agent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name_agent(agent, trust=True)
    another_process(monkeypatch)
    assert make_agent(str(agent)).name == "self-ask"
    copy = agent.with_name("copy.py")
    copy.write_bytes(agent.read_bytes())
    with pytest.raises(StepladderError, match="was not executed"):
        make_agent(str(copy))
    agent.write_text(agent.read_text() + "\n")
    with pytest.raises(StepladderError, match="was not executed"):
        make_agent(str(agent))


def test_the_list_of_trusted_files_belongs_to_the_user_alone(agent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name_agent(agent, trust=True)
    stored = json.loads(user_list("trusted_agents.json").read_text())
    assert stored == {str(agent): sha256(agent.read_bytes()).hexdigest()}
    assert stat.S_IMODE(user_list("trusted_agents.json").stat().st_mode) == 0o600
    another_process(monkeypatch)
    user_list("trusted_agents.json").chmod(0o666)
    with pytest.raises(StepladderError, match="can be changed by other users: delete it"):
        make_agent(str(agent))
    user_list("trusted_agents.json").chmod(0o600)
    user_list("trusted_agents.json").write_text('{"x": ')
    with pytest.raises(StepladderError, match=r"cannot be read .*: delete it"):
        make_agent(str(agent))
    monkeypatch.setenv("XDG_CONFIG_HOME", ".")  # would be a list in a downloaded folder
    assert user_list("trusted_agents.json") == Path("~/.config/stepladder/trusted_agents.json").expanduser()


@pytest.mark.parametrize("words", [["--trust-agent"], ["--agent", "rag", "--trust-agent"]])
def test_trust_needs_a_file(shell: Shell, words: list[str]) -> None:
    assert "add --agent FILE.py" in shell("ask", "--engine", "oracle", *words, code=2)


def test_a_stage_is_not_added_with_another_agent(shell: Shell, downloaded: Path) -> None:
    refused = shell("explore", "--run", downloaded, "--agent", "rag", code=2)
    assert f"--agent rag: the agent was set when the run {downloaded} was started: leave it out" in refused


def test_cached_bytecode_beside_a_trusted_file_is_not_executed(tmp_path: Path, agent: Path) -> None:
    evil = tmp_path / "evil.py"
    evil.write_text(f"from pathlib import Path\nPath({str(tmp_path / 'evil ran')!r}).touch()\n")
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(evil), cfile=_cached(agent), invalidation_mode=mode, doraise=True)
    name_agent(agent)
    assert make_agent(str(agent)).name == "self-ask"
    assert not (tmp_path / "evil ran").exists()


def _cached(path: Path) -> str:
    from importlib.util import cache_from_source

    return cache_from_source(str(path))


def test_a_pipe_or_a_huge_file_in_place_of_an_agent_is_not_read(shell: Shell, agent: Path, downloaded: Path) -> None:
    ask = ("ask", "--engine", "oracle", "--run", downloaded)
    os.truncate(agent, 10**10)
    assert "is too large; expected at most 1,000,000 bytes" in shell(*ask, code=2)
    agent.unlink()
    os.mkfifo(agent)
    assert "is not a regular file" in shell(*ask, code=2)


def test_python_names_an_agent_by_passing_it(
    agent: Path, tmp_path: Path, downloaded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = {"agent": str(agent), "data": {"name": "atlas-small"}, "stages": ORACLE}
    for number, overrides in enumerate(({}, {"agent": str(agent)})):
        another_process(monkeypatch)
        sl.run(recipe if not overrides else downloaded / "recipe.yaml", tmp_path / f"new-{number}", overrides)
    another_process(monkeypatch)
    (tmp_path / "ran").unlink()
    with pytest.raises(StepladderError, match=r"was not executed.*in Python agent="):
        sl.run(downloaded / "recipe.yaml", tmp_path / "other")
    question = sl.load_dataset("atlas-small").questions["test"][0]
    run = sl.load_run(tmp_path / "new-0")
    assert list(run.scores()) == ["oracle"]
    config = {"agent": run.recipe.shared.agent, "data": "atlas-small"}
    with sl.Policy("oracle", run.recipe.shared) as policy, pytest.raises(StepladderError, match="was not executed"):
        policy.ask(question)
    with sl.load_policy("oracle", **config) as policy:
        assert policy.ask(question).answer


def test_the_jobs_of_a_study_may_execute_what_its_user_named(tmp_path: Path, agent: Path) -> None:
    plain = Recipe.read({"agent": str(agent), "data": {"name": "atlas-small"}, "stages": ORACLE}).plain()
    with pytest.raises(StepladderError, match="was not executed"):
        run_job(Job(plain, tmp_path / "run"))
    name_agent(agent)
    job = Job(plain, tmp_path / "run")
    assert json.loads(job.to_json())["agents"] == [str(agent)]
    run_job(job)


def test_the_jobs_of_a_study_import_nothing_from_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "pydantic.py").write_text("from pathlib import Path; Path('ran').touch()")
    subprocess.run(COMMAND, cwd=tmp_path, input="", text=True, capture_output=True, check=False)
    assert not (tmp_path / "ran").exists()


# --- reading a run ----------------------------------------------------------------------------------------------


@pytest.fixture
def finished(tmp_path: Path, agent: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run of an agent that its reader has not named, and whose file is another now."""
    base, folder = tmp_path / "base", tmp_path / "run"
    tiny_model().save_pretrained(base)
    tiny_tokenizer().save_pretrained(base)
    name_agent(agent)
    plain = {"agent": str(agent), "policy": str(base), "data": {"name": "atlas-small"}}
    run_recipe(Recipe.read({**plain, "stages": ORACLE}), folder)
    another_process(monkeypatch)
    (tmp_path / "ran").unlink()
    agent.write_text(agent.read_text().replace("render", "renders"))
    run = RunFolder(folder)
    run.write_recipe(Recipe.read({**plain, "stages": {**ORACLE, "sft": {}, "explore": {}, "pairs": {}}}))
    trained = tiny_model()
    with torch.no_grad():
        trained.model.layers[0].mlp.up_proj.weight[0] += 1.0
    trained.save_pretrained(folder / "sft" / "policy")
    tiny_tokenizer().save_pretrained(folder / "sft" / "policy")
    (folder / "explore").mkdir()
    with TreeFile(folder / "explore" / "trees.jsonl.gz") as trees:
        trees.add(Tree(QUESTION, "self-ask", (Node(0, None, None),)))
    for split in ("train", "dev"):
        write_records(folder / "pairs" / "pairs" / f"{split}.jsonl", [pair("who")])
    for kind, role, output in (
        ("sft", "policy", "policy"),
        ("explore", "trees", "trees.jsonl.gz"),
        ("pairs", "pairs", "pairs"),
    ):
        run.finish(StageRecord(kind, kind, "", {}, {}, outputs={role: output}))
    return folder


def test_reading_a_run_executes_nothing(shell: Shell, tmp_path: Path, finished: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    shell("report", "--run", finished, "--out", out / "report.html")
    other = shutil.copytree(finished, tmp_path / "other")
    shell("compare", f"{finished}:oracle", f"{other}:oracle", "--html", out / "compare.html")
    shell("tree", "--run", finished)
    shell("export", "--run", finished, "--to", "trl", "--out", out / "pairs")
    shell("adapter", "--run", finished, "--out", out / "adapter", "--rank", 2)
    assert not (out / "adapter" / "stepladder.json").exists()  # an adapter names no code
    run = sl.load_run(finished)
    run.scores().show()
    assert len(run.trees) == len(list(run.pairs)) == 1
    assert not (tmp_path / "ran").exists()
