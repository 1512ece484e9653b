"""Settings of credit assignment without effect beside the others, each with the reason."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepladder.train.grpo.config import GRPOConfig

#: Settings that came after the first version. Unset, they are no part of a stage's fingerprint.
SINCE = (
    "outcome_weight", "potential", "num_continuations", "center_gains", "normalize_rewards", "format_weight", "std",
)  # fmt: skip
_GAIN = ("potential", "num_continuations", "center_gains")
_MODES = ("dual", "outcome", "process", "first-error", "gain", "tree")
_SCORER = ("scorer", "retokenize", "monitors.f1_drop", "monitors.step_score_rise")
_STEP_REWARDS = ("grade_answers", "normalize", "min_std", "rewards.step_format_bonus")
_ANSWER_REWARDS = ("rewards.f1_weight", "rewards.min_f1")


def unused_credit(settings: "GRPOConfig") -> dict[str, str]:
    """Settings of other modes, potentials and scorers: name -> reason. Nothing is known of modes that users add."""
    mode = settings.mode
    found: dict[str, str] = {}
    if mode in ("outcome", "tree"):
        names = ("process_weight", *_STEP_REWARDS, *_SCORER)
        found |= dict.fromkeys(names, f"with mode: {mode} (it scores no steps)")
    if mode == "process":
        found |= {
            "process_weight": "with mode: process (there is no outcome advantage to weigh against)",
            "grade_answers": "with mode: process (every step is graded)",
        }
        outcome = (*_ANSWER_REWARDS, "rewards.format_bonus")
        found |= dict.fromkeys(outcome, "with mode: process (steps are rewarded, not answers)")
    if mode in ("dual", "first-error"):
        found |= _unused_beside_steps(settings)
    if mode == "gain":
        found |= _unused_with_gain(settings)
    if mode in _MODES and mode != "gain":
        found |= dict.fromkeys(_GAIN, f"with mode: {mode} (it has no potential)")
    if mode in ("outcome", "process", "tree"):
        found["outcome_weight"] = f"with mode: {mode} (there are no two advantages to weigh)"
    if mode in _MODES and mode != "tree":
        trees = [f"tree.{name}" for name in type(settings.tree).model_fields]
        found |= dict.fromkeys(trees, f"with mode: {mode} (it samples no trees)")
    if settings.normalize_rewards == "together":
        found["format_weight"] = "with normalize_rewards: together (the format is part of the reward)"
    if settings.scorer == "gold":
        found.setdefault("retokenize", "with scorer: gold (no PRM reads the transcripts)")
    if settings.scorer != "gold" or "scorer" in found:
        found["derived"] = "without scorer: gold (only the gold judge knows derived steps)"
    return found


def _unused_beside_steps(settings: "GRPOConfig") -> dict[str, str]:
    """With the modes that add the outcome to the score of a step."""
    found: dict[str, str] = {}
    if not settings.process_weight:
        found |= dict.fromkeys(("grade_answers", "normalize", "min_std"), "with process_weight: 0")
    if not settings.outcome_weight:
        kept = () if settings.normalize_rewards == "apart" else ("rewards.format_bonus",)
        found |= dict.fromkeys((*_ANSWER_REWARDS, *kept), "with outcome_weight: 0")
    return found


def _unused_with_gain(settings: "GRPOConfig") -> dict[str, str]:
    potential = settings.potential
    found = dict.fromkeys(_STEP_REWARDS, "with mode: gain (the potential before a step is its baseline)")
    if potential != "prm":
        found |= dict.fromkeys(_SCORER, f"with potential: {potential} (no step is scored)")
    if potential not in ("monte-carlo", "agreement"):
        found["num_continuations"] = f"with potential: {potential} (nothing is continued)"
    if not settings.process_weight:
        found |= dict.fromkeys(_GAIN, "with process_weight: 0")
    if not settings.outcome_weight:
        found["std"] = "with mode: gain and outcome_weight: 0 (gains are not divided)"
    return found
