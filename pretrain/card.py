"""The figures of nano's model card, from the logs in `pretrain/results`.

    python -m pretrain.card      # rewrites what stands between the marks in the card, and the picture

The picture needs matplotlib, which nothing else here does; without it only the table is written.
"""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
CARD = Path(__file__).parents[1] / "src/stepladder/models/nano/README.md"
KINDS = ("reading", "looking_up", "plans", "conclusions", "checks")


def rows(name: str) -> list[dict[str, Any]]:
    """The lines of one log."""
    return [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]


def pretraining_table() -> str:
    """Loss, and answers exactly right, as training went on."""
    lines = [
        "| tokens | loss | " + " | ".join(kind.replace("_", " ") for kind in KINDS) + " |",
        "|---" * (len(KINDS) + 2) + "|",
    ]
    for row in rows("pretraining"):
        if "right" in row:
            shares = " | ".join(f"{row['right'][kind]:.2f}" for kind in KINDS)
            lines.append(f"| {row['tokens'] / 1e6:,.0f}M | {row['loss']:.3f} | {shares} |")
    return "\n".join(lines)


def replaced(text: str, mark: str, content: str) -> str:
    """The text with new content between `<!-- mark -->` and `<!-- end -->`."""
    begin, end = f"<!-- {mark} -->\n", "<!-- end -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the card has no place for {mark}")
    return f"{before}{begin}{content}\n{end}{after}"


def written(text: str) -> str:
    """The card with its table as the logs have them."""
    return replaced(text, "pretraining", pretraining_table())


def draw() -> None:
    """A picture beside the card."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "nano", "font.size": 9})
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    log = rows("pretraining")
    left.plot([row["tokens"] / 1e6 for row in log], [row["loss"] for row in log], color="0.3")
    left.set(xlabel="million tokens", ylabel="weighted loss", yscale="log", title="pre-training loss")
    probed = [row for row in log if "right" in row]
    for kind in KINDS:
        right.plot(
            [row["tokens"] / 1e6 for row in probed],
            [row["right"][kind] for row in probed],
            label=kind.replace("_", " "),
        )
    right.set(xlabel="million tokens", title="answers exactly right, unseen worlds", ylim=(0, 1))
    right.legend(frameon=False)
    figure.savefig(CARD.with_name("pretraining.svg"), metadata={"Date": None})


if __name__ == "__main__":
    CARD.write_text(written(CARD.read_text()))
    try:
        draw()
    except ModuleNotFoundError as missing:
        print(f"no picture: {missing}")
