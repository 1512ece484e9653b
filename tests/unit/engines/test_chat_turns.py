"""Prompted chat models: whose turn it is after a slip, templates without a system role, models without a template."""

from typing import Any

import pytest

from stepladder.agents import Play, make_agent
from stepladder.core.answer_metrics import score
from stepladder.core.errors import StepladderError
from stepladder.core.requests import Generate, Sampling
from stepladder.core.trace import Author, Question, Segment, StopReason
from stepladder.driver import Driver
from stepladder.engines.openai.openai_protocol import chat_messages
from stepladder.engines.transformers.engine import TransformersEngine
from stepladder.evaluation.evaluator import check_played, evaluate
from stepladder.explore.episode import EpisodeConfig
from stepladder.models.tiny import tiny_model, tiny_tokenizer
from tests.support.samples import WordRetriever

#: As Qwen's, with no system role: it raises for one.
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% if m.role == 'assistant' %}<|end|>{% endif %}{{ '\\n' }}{% endfor %}[assistant]"
)
END = 256


def engine(template: str | None = TEMPLATE, **options: Any) -> TransformersEngine:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return TransformersEngine(tiny_model(), tokenizer, **options)


def read_by(made: TransformersEngine, *context: Segment) -> str:
    (reply,) = made.generate([Generate(context, sampling=Sampling(max_tokens=1))])
    assert not isinstance(reply, Exception)
    return made.decode([token for segment in reply.context for token in segment.tokens])


def policy(made: TransformersEngine, text: str, *, ended: bool) -> Segment:
    tokens = made.encode(Segment(Author.POLICY, text)).tokens
    return Segment(Author.POLICY, text, (*tokens, END) if ended else tokens, vocabulary=made.encoding.vocabulary)


PROMPT, HINT = Segment(Author.PROMPT, "Who?"), Segment(Author.ENVIRONMENT, "\nTry again.\n")


def test_after_an_ended_turn_the_environment_speaks_as_the_user() -> None:
    made = engine()
    assert read_by(made, PROMPT, policy(made, "Rome.", ended=True), HINT) == (
        "[user]Who?\n[assistant]Rome.<|end|>\n[user]Try again.\n[assistant]"
    )


def test_a_turn_that_was_stopped_goes_on() -> None:
    made = engine()
    text = read_by(made, PROMPT, policy(made, "<search>x</search>", ended=False), HINT)
    assert text == "[user]Who?\n[assistant]<search>x</search>\nTry again.\n"


def test_without_a_template_for_several_turns_the_text_goes_on() -> None:
    made = engine("{{ messages[0].content }}{% if messages | length > 1 %}{{ raise_exception('one turn') }}{% endif %}")
    assert read_by(made, PROMPT, policy(made, "Rome.", ended=True), HINT) == "Who?Rome.<|end|>\nTry again.\n"
    plain = engine(None)
    assert read_by(plain, PROMPT, policy(plain, "Rome.", ended=True), HINT) == "Who?Rome.<|end|>\nTry again.\n"


def test_no_agent_needs_a_system_role() -> None:
    messages = chat_messages((PROMPT, Segment(Author.POLICY, "Rome."), HINT))
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]


def test_chat_options_without_a_chat_template_are_refused() -> None:
    with pytest.raises(StepladderError, match=r"no chat template: leave out its variables \(chat_options: thinking\)"):
        engine(None, chat_template_kwargs={"thinking": False})


def test_a_window_smaller_than_one_passage_is_a_clear_error() -> None:
    questions = [Question("q", "Who designed Orm Tower?", ("Ada Tarn",))]
    agent = make_agent("rag", play=Play.of("lenient"))
    result = evaluate(Driver(engine(context_limit=100), WordRetriever()), agent, questions, EpisodeConfig())
    assert result.scores[0].stop is StopReason.CONTEXT_LIMIT  # scored and kept
    with pytest.raises(StepladderError, match=r"filled the model.s context window .* .--topk 1"):
        check_played(result.scores)


def test_a_model_that_writes_nonsense_still_ends_with_an_answer() -> None:
    questions = [Question("q", "Who designed Orm Tower?", ("Ada Tarn",))]
    limits = EpisodeConfig(sampling=Sampling(max_tokens=4))
    for name in ("direct", "search-r1", "reasonrag", "research"):
        agent = make_agent(name, play=Play.of("lenient"))
        result = evaluate(Driver(engine(context_limit=20_000), WordRetriever()), agent, questions, limits)
        (trajectory,) = result.trajectories
        assert trajectory is not None
        assert trajectory.stop in (StopReason.ANSWERED, StopReason.FORCED)
        assert score(trajectory).malformed_steps == (0 if name == "direct" else 3)
