"""A language model as judge and as step scorer."""

from stepladder.core.errors import StepladderError
from stepladder.core.step_scorer import StepScorer
from stepladder.judges.base import Judge, JudgeOptions, JudgeSpec, ScorerOptions, ScorerSpec


def _judge(options: JudgeOptions) -> Judge:
    if options.llm is None:
        raise StepladderError("judge: llm needs the settings of the model (llm.model)")
    return options.llm.judge()


def _scorer(options: ScorerOptions) -> StepScorer:
    from stepladder.judges.llm.llm_judge import LLMScorer

    if options.llm is None or options.folder is None:
        raise StepladderError("the scorer llm needs the settings of the model (llm.model) and a folder")
    return LLMScorer(options.llm.open_engine(options.folder, options.device), options.llm.judge())


JUDGES = {"llm": JudgeSpec(_judge, "a language model that chooses, ranks or grades", uses_llm=True, uses_margin=False)}
SCORERS = {"llm": ScorerSpec(_scorer, "a language model that grades or ranks steps", uses_llm=True)}
