"""Judges and step scorers by name: a new one is one file."""

import sys
from pathlib import Path

import pytest

import stepladder.judges
from stepladder.core.errors import StepladderError, UnknownName
from stepladder.judges.base import JudgeOptions, ScorerOptions
from stepladder.judges.registry import judges, make_judge, make_scorer, scorers
from stepladder.oracle.step_judge import GoldJudge, GoldScorer
from stepladder.pipeline.stages.pairs import PairConfig
from stepladder.pipeline.stages.rank import RankConfig


def test_the_shipped_judges_and_scorers() -> None:
    assert set(judges()) == {"spre", "mc", "q", "rank", "llm", "gold"}
    assert set(scorers()) == {"prm", "llm", "gold"}
    assert all(judges().description(name) for name in judges())
    assert [name for name in judges() if judges().get(name).uses_llm] == ["llm"]
    assert [name for name in scorers() if scorers().get(name).uses_prm] == ["prm"]


def test_names_become_objects() -> None:
    assert isinstance(make_judge("gold"), GoldJudge)
    assert isinstance(make_scorer("gold"), GoldScorer)
    assert make_judge("mc", JudgeOptions(margin=0.5)).name == "mc"
    with pytest.raises(UnknownName, match=r"unknown judge 'sprre'\. Did you mean 'spre'"):
        make_judge("sprre")
    with pytest.raises(StepladderError, match="no reward model given"):
        make_scorer("prm", ScorerOptions(None))
    with pytest.raises(StepladderError, match=r"llm\.model"):
        make_judge("llm")
    with pytest.raises(StepladderError, match=r"llm\.model"):
        make_scorer("llm")


def test_a_recipe_with_an_unknown_name_is_told_the_nearest() -> None:
    with pytest.raises(StepladderError, match=r"pairs\.judge: unknown judge 'golf'. Did you mean 'gold'\?"):
        PairConfig.read({"judge": "golf"}, "r.yaml: pairs")
    with pytest.raises(StepladderError, match=r"rank\.judge: unknown step scorer 'pmr'. Did you mean 'prm'\?"):
        RankConfig.read({"judge": "pmr"}, "r.yaml: rank")


def test_a_judge_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "longest.py").write_text(
        "from stepladder.judges.base import JudgeSpec\n"
        "from stepladder.judges.value import ValueJudge\n"
        "def _lengths(tree):\n"
        "    return [None if node.step is None else len(node.step.written.text) for node in tree.nodes]\n"
        "JUDGES = {'longest': JudgeSpec(lambda options: ValueJudge('longest', _lengths), 'prefers long steps')}\n"
    )
    monkeypatch.setattr(stepladder.judges, "__path__", [*stepladder.judges.__path__, str(tmp_path)])
    judges.cache_clear()
    try:
        assert PairConfig(judge="longest").make_judge().name == "longest"
    finally:
        judges.cache_clear()
        sys.modules.pop("stepladder.judges.longest", None)
