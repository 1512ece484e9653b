"""The figures of the model cards, from the logs in `pretrain/results`.

    python -m pretrain.card      # rewrites what stands between the marks in the cards, and the two pictures

The pictures need matplotlib, which nothing else here does; without it only the tables are written.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
MODELS = Path(__file__).parents[1] / "src/stepladder/models"
CARD = MODELS / "nano/README.md"
CRITIC = MODELS / "nano-critic/README.md"
ARMS = {"outcome": "outcome reward", "steps": "outcome and step rewards"}
SEEDS = (1, 2, 3)
KINDS = ("reading", "looking_up", "plans", "conclusions")
CHECKED_KINDS = ("reading", "looking_up", "asking", "conclusions")


def rows(name: str) -> list[dict[str, Any]]:
    """The lines of one log."""
    return [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]


def scored(arm: str, seed: int) -> list[dict[str, Any]]:
    """The rows of a probe that have a test score."""
    return [row for row in rows(f"{arm}-{seed}") if "f1" in row]


def pretraining_table(log: str = "pretraining", kinds: Sequence[str] = KINDS, digits: int = 2) -> str:
    """Loss, and answers exactly right, as training went on."""
    lines = [
        "| tokens | loss | " + " | ".join(kind.replace("_", " ") for kind in kinds) + " |",
        "|---" * (len(kinds) + 2) + "|",
    ]
    for row in rows(log):
        if "right" in row:
            shares = " | ".join(f"{row['right'][kind]:.{digits}f}" for kind in kinds)
            lines.append(f"| {row['tokens'] / 1e6:,.0f}M | {row['loss']:.3f} | {shares} |")
    return "\n".join(lines)


def probe_table() -> str:
    """Test F1 of every arm and seed at every score."""
    steps = [row["step"] for row in scored("outcome", SEEDS[0])]
    lines = [
        "| arm | seed | "
        + " | ".join(f"step {step}" for step in steps)
        + " | 1 / 2 / 3 / 4 searches at the end | valid |"
    ]
    lines.append("|---" * (len(steps) + 4) + "|")
    for arm, label in ARMS.items():
        for seed in SEEDS:
            scores = scored(arm, seed)
            hops = " / ".join(f"{value:.2f}" for value in scores[-1]["f1_by_hops"].values())
            f1 = " | ".join(f"{row['f1']:.3f}" for row in scores)
            lines.append(f"| {label} | {seed} | {f1} | {hops} | {scores[-1]['valid']:.3f} |")
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
    """The card with its tables as the logs have them."""
    return replaced(replaced(text, "pretraining", pretraining_table()), "probe", probe_table())


def critic_written(text: str) -> str:
    """The critic's card with its table."""
    return replaced(text, "pretraining", pretraining_table("critic", CHECKED_KINDS, digits=3))


def draw() -> None:
    """Two pictures beside the card."""
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

    figure, axis = pyplot.subplots(figsize=(6, 3.2), layout="constrained")
    for color, (arm, label) in zip(("tab:gray", "tab:blue"), ARMS.items()):
        for seed in SEEDS:
            scores = scored(arm, seed)
            axis.plot(
                [row["step"] for row in scores],
                [row["f1"] for row in scores],
                color=color,
                label=label if seed == SEEDS[0] else None,
            )
    axis.set(
        xlabel="updates of 256 trajectories", ylabel="F1, 300 test questions", title="policy gradient after the warm-up"
    )
    axis.legend(frameon=False, loc="lower right")
    figure.savefig(CARD.with_name("probe.svg"), metadata={"Date": None})


if __name__ == "__main__":
    CARD.write_text(written(CARD.read_text()))
    CRITIC.write_text(critic_written(CRITIC.read_text()))
    try:
        draw()
    except ModuleNotFoundError as missing:
        print(f"no pictures: {missing}")
