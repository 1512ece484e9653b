"""How useful a reward model's scores are to choose: between steps at one place, and between episodes of one question.

In: steps with scores and verdicts; episodes with the scores of their steps. Out: plain numbers, with intervals that
resample questions.

An AUC over all steps mixes three abilities: to tell easy questions from hard ones, kinds of steps from each other, and
good from faulty steps where a policy can choose. `peer_auc` is of the third alone. `difficulty_auc` is what the first
alone would give: it predicts an answer from how often the other episodes of the question were right.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean
from typing import Any

from stepladder.core.answer_metrics import normalize, score_question
from stepladder.core.step_scorer import sigmoid
from stepladder.core.trace import ActionKind, Trajectory
from stepladder.evaluation.prm.calibration import GradedStep
from stepladder.evaluation.prm.ranking import auc_interval
from stepladder.evaluation.statistics import mean_interval, pooled_share

ANSWER = ActionKind.ANSWER.value
#: How the scores of the steps of an episode become one score.
EPISODE_SCORES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "last": lambda scores: scores[-1],
    "least": min,
    "mean": fmean,
}


@dataclass(frozen=True, slots=True)
class _Episode:
    f1: float
    #: Equal for answers that count as the same; None without an answer.
    answer: str | None
    scores: Sequence[float]


def selection_report(
    steps: Sequence[GradedStep], trajectories: Sequence[Trajectory], scores: Sequence[Sequence[float]]
) -> dict[str, Any]:
    """All numbers of this module. `scores`: one per step of every trajectory."""
    answers = [step for step in steps if step.kind == ANSWER]
    return {
        "peers": {kind: peer_auc(each) for kind, each in _by_kind(steps).items()},
        "answers": {
            "auc": _auc([(step.score, step) for step in answers]),
            "difficulty": difficulty_auc(answers),
            **{name: _answers(answers, after) for name, after in (("before_fault", False), ("after_fault", True))},
        },
        "best_of": best_of(trajectories, scores),
    }


def _by_kind(steps: Sequence[GradedStep]) -> dict[str, list[GradedStep]]:
    found: dict[str, list[GradedStep]] = {"all": list(steps)}
    for step in steps:
        found.setdefault(step.kind, []).append(step)
    return found


def peer_auc(steps: Sequence[GradedStep]) -> dict[str, float] | None:
    """How often a good step scores higher than a faulty one of its question, place and kind; a tie counts half."""
    groups: dict[tuple[str, int, str], tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for step in steps:
        groups[step.question_id, step.place, step.kind][not step.good].append(step.score)
    wins, tries = defaultdict[str, float](float), defaultdict[str, int](int)
    for (question, _, _), (good, faulty) in groups.items():
        wins[question] += sum((g > f) + 0.5 * (g == f) for g in good for f in faulty)
        tries[question] += len(good) * len(faulty)
    found = pooled_share([wins[each] for each in tries], list(tries.values()))
    return None if found is None else {**asdict(found), "pairs": sum(tries.values())}


def mistake_auc(intact: Sequence[GradedStep], corrupted: Sequence[GradedStep]) -> dict[str, float] | None:
    """How often a faulty step of a corrupted chain scores lower than a good step of the same kind in intact ones.

    Unlike the lowest step of whole chains, it does not depend on their number of steps.
    """
    good: dict[str, list[float]] = defaultdict(list)
    for step in intact:
        if step.good:
            good[step.kind].append(step.score)
    wins, tries = defaultdict[str, float](float), defaultdict[str, int](int)
    for step in corrupted:
        if not step.good:
            wins[step.question_id] += sum((g > step.score) + 0.5 * (g == step.score) for g in good[step.kind])
            tries[step.question_id] += len(good[step.kind])
    found = pooled_share([wins[each] for each in tries], list(tries.values()))
    return None if found is None else {**asdict(found), "pairs": sum(tries.values())}


def difficulty_auc(answers: Sequence[GradedStep]) -> dict[str, float] | None:
    """The AUC of a predictor that knows only how often the other answers to the same question are good."""
    by_question: dict[str, list[GradedStep]] = defaultdict(list)
    for step in answers:
        by_question[step.question_id].append(step)
    predicted = []
    for same in by_question.values():
        good = sum(step.good for step in same)
        predicted += [((good - step.good) / (len(same) - 1), step) for step in same if len(same) > 1]
    return _auc(predicted)


def _auc(scored: Sequence[tuple[float, GradedStep]]) -> dict[str, float] | None:
    labels = [step.good for _, step in scored]
    if len(set(labels)) < 2:
        return None
    return asdict(auc_interval([score for score, _ in scored], labels, [step.question_id for _, step in scored]))


def _answers(answers: Sequence[GradedStep], after_fault: bool) -> dict[str, Any]:
    """The answers of episodes with an earlier fault, or without."""
    same = [step for step in answers if step.after_fault is after_fault]
    share = fmean(step.good for step in same) if same else None
    return {"answers": len(same), "good": share, "auc": _auc([(step.score, step) for step in same])}


def best_of(trajectories: Sequence[Trajectory], scores: Sequence[Sequence[float]]) -> dict[str, Any] | None:
    """F1 of the episode that is chosen of all episodes of a question, by each of `EPISODE_SCORES`. `scores`: logits.

    `weighted` chooses as guided inference with `strategy: trajectories` and `weighted: true`: by the probability of the
    lowest score times the number of episodes with the same answer. For comparison: `random` is what choosing at random
    gives, `vote` the most frequent answer, `oracle` the best one by F1. An episode without an answer is never chosen if
    there is another. `flat` is the share of questions whose episodes all have the same F1: there is nothing to choose,
    and nothing that GRPO learns from. None without a question that has several episodes and a known answer.
    """
    episodes: dict[str, list[_Episode]] = defaultdict(list)
    for trajectory, found in zip(trajectories, scores, strict=True):
        if trajectory.question.answers and found:
            f1 = score_question(trajectory.answer, trajectory.question).f1
            answer = None if trajectory.answer is None else normalize(trajectory.answer) or trajectory.answer
            episodes[trajectory.question.id].append(_Episode(f1, answer, found))
    several = [each for each in episodes.values() if len(each) > 1]
    if not several:
        return None
    chosen = {
        name: [_chosen(same, partial(_own_score, score)) for same in several] for name, score in EPISODE_SCORES.items()
    }
    chosen["vote"] = [_voted(same, lambda _: 1.0) for same in several]
    chosen["weighted"] = [_voted(same, lambda each: sigmoid(min(each.scores))) for same in several]
    chosen["random"] = [fmean(each.f1 for each in same) for same in several]
    chosen["oracle"] = [max(each.f1 for each in same) for same in several]
    chosen["flat"] = [float(len({each.f1 for each in same}) == 1) for same in several]
    sizes = {len(each) for each in several}
    return {
        "questions": len(several),
        "episodes": max(sizes),
        **{name: asdict(mean_interval(values)) for name, values in chosen.items()},
    }


def _own_score(score: Callable[[Sequence[float]], float], episode: _Episode) -> float:
    return score(episode.scores)


def _chosen(episodes: Sequence[_Episode], rank: Callable[[_Episode], float]) -> float:
    """F1 of the first episode with the highest rank."""
    return max(episodes, key=lambda each: (each.answer is not None, rank(each))).f1


def _voted(episodes: Sequence[_Episode], weight: Callable[[_Episode], float]) -> float:
    counts = Counter(each.answer for each in episodes)
    return _chosen(episodes, lambda each: counts[each.answer] * weight(each))
