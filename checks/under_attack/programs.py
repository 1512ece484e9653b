"""Files that name code: adapters, recipes, models. Folders of texts that lead elsewhere."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from under_attack.version import Finished, NotRun, Version, attack, listed

RECIPE = """
agent: prorag
data: {{name: atlas-small}}
stages:
  oracle: {{kind: eval, policy: {oracle}, limit: 2}}
  explore: {{policy: {oracle}, questions: 1, simulations: 2}}
"""


def marker(folder: Path) -> Path:
    """The file that code of an attack creates."""
    return folder / "code ran"


def program(folder: Path, name: str = "theirs.py") -> Path:
    """Code that leaves its mark."""
    path = folder / name
    path.write_text(f"from pathlib import Path\nPath({str(marker(folder))!r}).touch()\n", encoding="utf-8")
    return path


def ran(folder: Path, command: str) -> str | None:
    """Says so if the code ran since the last time."""
    if not marker(folder).exists():
        return None
    marker(folder).unlink()
    return f"{command} executed the file"


def finished_run(version: Version) -> Path:
    """A run of two stages, made once."""

    def make(folder: Path) -> None:
        (folder / "recipe.yaml").write_text(RECIPE.format(oracle=version.say("oracle")), encoding="utf-8")
        version.cli("run", folder / "recipe.yaml", "--out", folder / "run", folder=folder).done()

    return version.made("oracle-run", make) / "run"


@attack("adapter names a program")
def adapter_names_a_program(version: Version, folder: Path) -> str | None:
    """`ask`, `eval` and `serve-agent` with an adapter whose `stepladder.json` names an agent file."""
    adapter = folder / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "nano"}), encoding="utf-8")
    (adapter / "stepladder.json").write_text(json.dumps({"agent": str(program(folder))}), encoding="utf-8")

    def problems() -> Iterator[str | None]:
        for command in (["ask", "Who?"], ["eval", "--limit", 1], ["serve-agent", "--port", 0]):
            done = version.cli(*command, "--model", adapter, folder=folder, seconds=90)
            yield ran(folder, str(command[0])) or done.refused("theirs.py")

    return listed(problems())


@attack("recipe names a program")
def recipe_names_a_program(version: Version, folder: Path) -> str | None:
    """Commands that read a run whose recipe names an agent file, and a recipe that does."""
    run, other = folder / "run", finished_run(version)
    shutil.copytree(other, run)
    recipe = run / "recipe.yaml"
    before = recipe.read_text(encoding="utf-8")
    recipe.write_text(before.replace("agent: prorag\n", f"agent: {program(folder)}\n"), encoding="utf-8")
    if recipe.read_text(encoding="utf-8") == before:
        raise NotRun("the recipe of the run names no agent")
    named = [run] if version.old else ["--run", run]  # it was a positional argument
    pairs = [run, folder / "pairs"] if version.old else ["--run", run, "--out", folder / "pairs"]
    reads = [["report", *named], ["compare", f"{run}:oracle", f"{other}:oracle"], ["tree", "--run", run]]
    fails = [["adapter", *named, "--out", folder / "adapter"], ["export", *pairs, "--to", "rag-proguide"]]
    fails += [["run", recipe, "--out", folder / "new"], ["ask", "Who?", "--run", run]]

    def problems() -> Iterator[str | None]:
        for command in (*reads, *fails):
            done = version.cli(*command, folder=folder)
            yield ran(folder, str(command[0])) or _ended_well(done, command in reads)

    return listed(problems())


def _ended_well(done: Finished, reads: bool) -> str | None:
    if reads:
        return None if done.code == 0 else done.last
    return None if done.code in (0, 2) and "Traceback" not in done.err else done.last


@attack("model brings its own code (auto_map)")
def auto_map(version: Version, folder: Path) -> str | None:
    """A model folder whose config names code, and a user who presses y."""
    model = folder / "model"
    shutil.copytree(version.root / "src/stepladder/models/nano", model)
    touch = program(folder).read_text(encoding="utf-8")
    (model / "evil.py").write_text(
        f"{touch}from transformers import LlamaConfig as Config, LlamaForCausalLM as Model\n", encoding="utf-8"
    )
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    names = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    text = json.dumps({**config, "model_type": "evil", "auto_map": names})
    (model / "config.json").write_text(text, encoding="utf-8")
    done = version.cli("ask", "Who?", "--model", model, folder=folder, stdin="y\n" * 9, seconds=90)
    asked = "asked to run it" if "[y/N]" in done.out + done.err else None
    return ran(folder, "ask, after a question on the terminal,") or asked or done.refused("code")


def corpus(folder: Path) -> Path:
    """A folder with one text."""
    texts = folder / "texts"
    texts.mkdir()
    (texts / "tower.md").write_text("# Orm Tower\n\nOrm Tower was designed by Ada Tarn.\n", encoding="utf-8")
    return texts


def _built(version: Version, texts: Path, seconds: float = 300) -> Finished:
    return version.cli("index", "build", texts, "--out", texts.parent / "index", folder=texts.parent, seconds=seconds)


@attack("links out of a corpus")
def links_out_of_a_corpus(version: Version, folder: Path) -> str | None:
    """A link to a file, and a link to a folder, outside of the one that is indexed."""
    texts, secret = corpus(folder), folder / "secret"
    secret.mkdir()
    for name in ("key.md", "more.md"):
        (secret / name).write_text(f"# Key\n\nThe hidden word of {name} is xylophone.\n", encoding="utf-8")
    (texts / "link.md").symlink_to(secret / "key.md")
    (texts / "linked").symlink_to(secret)
    if (done := _built(version, texts)).code:
        return done.last
    found = version.cli("index", "search", folder / "index", "hidden word xylophone", folder=folder).done().out
    return "a file outside of the folder was indexed" if "xylophone" in found.replace("word xylophone", "") else None


@attack("pipe in a corpus")
def pipe_in_a_corpus(version: Version, folder: Path) -> str | None:
    """A pipe into which nobody writes."""
    texts = corpus(folder)
    os.mkfifo(texts / "pipe.md")
    done = _built(version, texts, seconds=40)
    return None if done.code == 0 else done.last
