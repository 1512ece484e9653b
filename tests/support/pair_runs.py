"""Runs with preference pairs: imported from a file, so that nothing has to be explored."""

from pathlib import Path

from stepladder.core.io.records import write_records
from stepladder.core.trace import Action, ActionKind, Author, Pair, Segment, Side
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.runner import run_recipe

#: Text of a passage in the state of the first pair.
HOSTILE = '<script>document.title = "hacked"</script><img src=x onerror="document.title=1">'


def step(kind: ActionKind, text: str, value: float, **scores: float) -> Side:
    return Side(Segment(Author.POLICY, f"<{kind.value}>{text}</{kind.value}>"), Action(kind, text), value, 3, scores)


def pair(number: int) -> Pair:
    """Odd ones are answers, judged by a model; the gold judge disagrees with every third."""
    kind, judge = ((ActionKind.QUERY, "spre"), (ActionKind.ANSWER, "llm"))[number % 2]
    prompt = Segment(Author.PROMPT, f"Question: Where was architect {number} born?")
    passage = Segment(Author.ENVIRONMENT, f"\n<retrieval>\n[1] Tower: {HOSTILE}\n</retrieval>\n")
    gold = (0.0, 1.0) if number % 3 == 0 else (1.0, 0.0)
    chosen = step(kind, f"the better one {number}", 0.9, gold=gold[0], mc=0.5)
    rejected = step(kind, f"the worse one {number}", 0.25, gold=gold[1])
    return Pair(f"q{number:02}", "prorag-brief", (prompt, passage), chosen, rejected, number % 2, judge, "says so")


PAIRS = [pair(number) for number in range(12)]


def make_pair_run(folder: Path, **stages: dict[str, object]) -> Path:
    """A run with these pairs, 10 to train on, and further stages that its recipe names and that were not run."""
    file = folder.parent / f"{folder.name}.jsonl"
    folder.parent.mkdir(parents=True, exist_ok=True)
    write_records(file, PAIRS)
    own = {"pairs": {"kind": "pairs-file", "path": str(file), "dev_share": 0.2}}
    shared = {"policy": "tiny", "agent": "prorag-brief", "device": "cpu", "data": {"name": "atlas-small"}}
    run_recipe(Recipe.read({**shared, "stages": {**own, **stages}}), folder, only="pairs")
    return folder
