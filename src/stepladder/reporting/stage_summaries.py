"""What a stage brought, in a few lines for a person.

In: the record of a stage that is done. Out: a headline, and lines below it by name; of some kinds nothing is told
here. Numbers that a summary does not have are left out, because what is measured depends on the settings.
"""

from collections.abc import Callable, Mapping
from typing import Any

from stepladder.evaluate.statistics import Interval
from stepladder.pipeline.run_folder import StageRecord
from stepladder.preferences.pair_stats import listed
from stepladder.reporting.eval_table import interval_text
from stepladder.train.rft.filters import FILTERS

Numbers = Mapping[str, Any]
#: A headline, and lines by name, of which empty ones are left out.
Told = tuple[str, dict[str, str]]


def told_of(stage: StageRecord) -> Told | None:
    """What is to be told of a stage."""
    tell = _TELLERS.get(stage.kind)
    return tell(stage.summary) if tell is not None and stage.summary else None


def pair_lines(numbers: Numbers) -> dict[str, str]:
    """How right, of what kinds, how deep and how clear the pairs of a stage are, and what it took to judge them."""
    gold = {f"prefers {each}": (numbers["gold"] or {}).get(each, 0) for each in ("chosen", "rejected", "neither")}
    counts = {"gold judge": gold, **{name: numbers[name] for name in ("kinds", "depths", "margins", "dropped")}}
    counts["split"] = {name: numbers[name] for name in ("train", "dev")}
    return {**{name: listed(each) for name, each in counts.items()}, **_judge_lines(numbers)}


def _judge_lines(numbers: Numbers) -> dict[str, str]:
    """What became of what a model was asked as judge, and what it cost."""
    problems = "; ".join(f"{count:,} times {problem}" for problem, count in numbers.get("problems", {}).items())
    spend = {name: value for name, value in numbers.get("spend", {}).items() if value is not None}
    return {"judge": listed(numbers.get("asked", {})), "problems": problems, "spend": listed(spend)}


def _explored(numbers: Numbers) -> Told:
    failed = f"; {numbers['failed']:,} failed: {next(iter(numbers['failures']))}" if numbers["failed"] else ""
    broken = f"; {numbers['broken']:,} simulations broke" if numbers.get("broken") else ""
    written = "" if numbers["tokens_written"] is None else f"{numbers['tokens_written']:,} tokens written, "
    return (
        f"{numbers['trees']:,} trees, on average {numbers['nodes']:.1f} nodes and {numbers['simulations']:.1f} "
        f"simulations, F1 {numbers['mean_f1']:.2f}; {numbers['solved']:.0%} of the questions were answered rightly at "
        f"least once; {written}{numbers['shared']:.0%} of all requests answered from cache{broken}{failed}"
    ), _judge_lines(numbers)


def _ranked(numbers: Numbers) -> Told:
    failed = f"; {numbers['failed']:,} failed: {next(iter(numbers['failures']))}" if numbers["failed"] else ""
    written = "" if numbers["tokens_written"] is None else f"; {numbers['tokens_written']:,} tokens written"
    return (
        f"{numbers['trees']:,} questions, on average {numbers['nodes'] - 1:.1f} different actions; a right answer was "
        f"among them for {numbers['solved']:.0%}{written}{failed}"
    ), _judge_lines(numbers)


def _reward_model(numbers: Numbers) -> Told:
    unit, learnt, held_out = (
        ("pairs", "pairs", "held_out_pairs") if "pairs" in numbers else ("steps", "scored_steps", "held_out_steps")
    )
    measures = {f"held_out_{name}": name for name in ("accuracy", "margin", "error", "loss")}
    return (
        f"learnt from {numbers[learnt]:,} {unit}; held out {numbers[held_out]:,}{_measured(numbers, measures, ': ')}",
        {
            "updates": _updates(numbers),
            "refused": listed(numbers.get("refused", {})),
            "histories cut": _unless_zero(numbers.get("histories_cut")),
            "segments encoded anew": _unless_zero(numbers.get("segments_reencoded")),
        },
    )


def _refined(numbers: Numbers) -> Told:
    left = "".join(f" -> {numbers[name]:,} {_LEFT[name]}" for name in FILTERS)
    first_bad = {f"step {step}": count for step, count in numbers["first_bad_step"].items()}
    return (
        f"{numbers['sampled']:,} episodes of {numbers['questions']:,} questions sampled, "
        f"{numbers['tokens_sampled']:,} tokens{left}",
        {
            "first bad step": listed(first_bad),
            "its kind": listed(numbers["first_bad_kind"]),
            "broken episodes": _unless_zero(numbers["broken"]),
            "too long to learn from": _unless_zero(numbers["skipped_too_long"]),
            "updates": _updates(numbers),
            "dev": _measured(numbers, {"best_dev_f1": "F1"}),
        },
    )


def _preferred(numbers: Numbers) -> Told:
    measures = {"dev_accuracy": "accuracy", "dev_reward_gap": "reward gap", "dev_loss": "loss"}
    return (
        f"learnt from {numbers['pairs']:,} pairs of {numbers['questions']:,} questions; "
        f"held out {numbers['held_out_pairs']:,}{_measured(numbers, measures, ': ')}",
        {
            "updates": _updates(numbers),
            "refused": listed(numbers["refused"]),
            "dev": _measured(numbers, {"dev_f1": "F1", "dev_kl": "KL a token from where it began"}),
        },
    )


def _reinforced(numbers: Numbers) -> Told:
    ended = ""
    if numbers["stopped_by"]:
        ended = f"; stopped by {numbers['stopped_by']}, update {numbers['kept_update']:,} kept"
    elif numbers["out_of_time"]:
        ended = "; ended by the time limit"
    taught_nothing = f"{numbers['dropped_groups']:.0%}: all episodes of these earned the same"
    seconds = {part: numbers[f"{part}_seconds"] for part in ("rollout", "scoring", "update")}
    return (
        f"{numbers['mode']}: {numbers['episodes']:,} episodes of {numbers['questions']:,} questions, "
        f"{numbers['tokens_sampled']:,} tokens sampled; F1 of episodes {numbers['first_f1']:.2f} -> "
        f"{numbers['last_f1']:.2f}, reward {numbers['first_reward']:.2f} -> {numbers['last_reward']:.2f}{ended}",
        {
            "updates": _updates(numbers),
            "questions that taught nothing": taught_nothing if numbers["dropped_groups"] else "",
            "seconds": ", ".join(f"{part} {spent:.0f}" for part, spent in seconds.items()),
            "dev": _measured(numbers, {"best_dev_f1": "F1"}),
            "alarms": ", ".join(numbers["alarms"]),
        },
    )


def _examined(numbers: Numbers) -> Told:
    pairs = numbers.get("pair_accuracy") or {}
    spoilt = {name: each for name, each in numbers.get("chains", {}).items() if "auc" in each}
    lines = {
        "at a threshold of 0": _measured(numbers, {"right_at_0": "told right", "good": "all good would be"}),
        "by kind": ", ".join(
            f"{kind} {_share(each.get('auc'))} (faulty {each.get('faulty', 0):,} of {each.get('steps', 0):,})"
            for kind, each in numbers.get("by_kind", {}).items()
        ),
        "faults noticed at 0": ", ".join(
            f"{fault} {each.get('below_0', 0):.0%} of {each.get('steps', 0):,}"
            for fault, each in numbers.get("faults", {}).items()
        ),
        "held-out pairs": f"accuracy {_share(pairs)} of {pairs.get('pairs', 0):,}" if pairs else "",
        "calibration error": ", ".join(
            f"{name} {each['error']:.3f}" for name, each in numbers.get("calibration", {}).items()
        ),
        "spoilt chains told from gold ones": ", ".join(
            f"{name.replace('_', ' ')} {each['auc']:.2f} of {each.get('chains', 0):,}" for name, each in spoilt.items()
        ),
        "histories cut": _unless_zero(numbers.get("histories_cut")),
    }
    steps = f"{numbers.get('steps', 0):,} steps of {numbers.get('questions', 0):,} questions"
    return f"AUC {_share(numbers.get('auc'))} against the gold judge, {steps}", lines


#: What is left after each filter of a refinement.
_LEFT = {
    "answered": "answered",
    "right_answer": "rightly",
    "good_steps": "by good steps alone",
    "distinct": "different",
    "kept": "kept",
}
_TELLERS: dict[str, Callable[[Numbers], Told]] = {
    "explore": _explored,
    "rank": _ranked,
    "prm": _reward_model,
    "prm-eval": _examined,
    "rft": _refined,
    "dpo": _preferred,
    "grpo": _reinforced,
}


def _updates(numbers: Numbers) -> str:
    kept = "; none is kept: the policy was best as it came" if numbers.get("best_step") == 0 else ""
    return f"{numbers['steps']:,}, loss {numbers['first_loss']:.3f} -> {numbers['last_loss']:.3f}{kept}"


def _measured(numbers: Numbers, labels: Mapping[str, str], before: str = "") -> str:
    """The measures that are there, with what goes before the first."""
    found = ", ".join(f"{label} {numbers[name]:.3f}" for name, label in labels.items() if numbers.get(name) is not None)
    return before + found if found else ""


def _share(found: Mapping[str, float] | None) -> str:
    """A mean with its interval, as plain data has it."""
    return interval_text(Interval(found["mean"], found["low"], found["high"]), 2) if found else "-"


def _unless_zero(count: int | None) -> str:
    return f"{count:,}" if count else ""
