"""The model that comes with the package: its card tells the truth, and it read nothing of the default world."""

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from pretrain import card
from pretrain.checks import RIGHT, VERDICT, Checks
from pretrain.documents import FIRST_WORLD, MIX, WorldWriter, documents
from pretrain.mistakes import Mistakes
from pretrain.rl_probe import advantages, flatten, outcome, step_rewards
from pretrain.styles import AGENT_TAGS, GIVEN, PASSAGE, tidy
from stepladder.agents import AGENTS, make_agent
from stepladder.core.answer_metrics import normalize
from stepladder.core.errors import StepladderError
from stepladder.core.trace import Question, Trajectory
from stepladder.data.atlas import generate_atlas
from stepladder.driver import Driver
from stepladder.explore.episode import EpisodeConfig, episode
from stepladder.models import BUILT_IN, builtin_folder
from stepladder.models.loading import load_model
from stepladder.oracle.corruptions import garble
from stepladder.oracle.engine import OracleEngine
from tests.support.atlas import cached_atlas

NANO = builtin_folder("nano")
assert NANO is not None
CARD = (NANO / "README.md").read_text(encoding="utf-8")


@cache
def nano_tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(NANO)


@pytest.fixture(scope="module")
def writer() -> WorldWriter:
    return WorldWriter(generate_atlas("small", FIRST_WORLD + 7, cached_atlas().name_words), random.Random(0))


@pytest.mark.parametrize("model", ["nano", "nano-critic"])
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_the_card_names_the_files_by_their_hashes(model: str, name: str) -> None:
    folder = builtin_folder(model)
    assert folder is not None
    found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    assert f"| `{name}` | sha256 `{found}` |" in (folder / "README.md").read_text(encoding="utf-8")


def test_the_cards_have_the_tables_of_the_logs() -> None:
    assert card.written(CARD) == CARD, "run `python -m pretrain.card`"
    critic = card.CRITIC.read_text(encoding="utf-8")
    assert card.critic_written(critic) == critic, "run `python -m pretrain.card`"


def test_the_critic_reads_what_nano_writes() -> None:
    _, ours = load_model("nano", None, None)
    model, theirs = load_model("nano-critic", None, None)
    assert ours.get_vocab() == theirs.get_vocab()
    assert type(model).__name__ == "LlamaForCausalLM"


def test_nano_is_a_small_llama_that_every_tool_reads() -> None:
    model, tokenizer = load_model("nano", None, None)
    parameters = sum(weights.numel() for weights in model.parameters())
    assert type(model).__name__ == "LlamaForCausalLM"
    assert 3e6 < parameters < 8e6
    assert f"{parameters:,}" in CARD
    assert (NANO / "model.safetensors").stat().st_size <= 20e6
    assert model.config.max_position_embeddings >= 1024
    assert len(tokenizer) == model.config.vocab_size == 4096
    assert "nano" in BUILT_IN


def test_a_typo_in_a_built_in_name_does_not_ask_the_hub() -> None:
    with pytest.raises(StepladderError, match="Did you mean 'nano'"):
        load_model("nanno", None, None)


@given(st.text(max_size=40))
def test_any_text_can_be_written(text: str) -> None:
    tokenizer = nano_tokenizer()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_tags_of_agents_are_one_token_each() -> None:
    tokenizer = nano_tokenizer()
    for agent in AGENTS:
        for stop in make_agent(agent).stops:
            if re.fullmatch(r"</[a-z]+>", stop):
                assert len(tokenizer(stop, add_special_tokens=False)["input_ids"]) == 1, stop


def _words(seed: int, chains: float | None = None) -> Iterator[str]:
    for document in documents(seed, 400, cached_atlas().name_words, chains):
        yield from re.findall(r"[^\W\d_]+", "".join(text for text, _ in document).lower())


@pytest.mark.slow
def test_nothing_of_the_default_world_is_read() -> None:
    assert not cached_atlas().name_words.intersection(_words(FIRST_WORLD + 3))
    assert not cached_atlas().name_words.intersection(_words(FIRST_WORLD + 3, chains=0.5))
    # The test can fail: without words to avoid, worlds do share some.
    assert cached_atlas().name_words.intersection(cached_atlas(seed=FIRST_WORLD + 3).name_words)


def test_no_document_is_in_an_agents_format(writer: WorldWriter) -> None:
    marks = [f"<{tag}>" for tag in AGENT_TAGS]
    for kind in MIX:
        for _ in range(200):
            text = "".join(piece for piece, _ in getattr(writer, _MAKER.get(kind, kind))())
            if kind == "markup":
                assert "?" not in text, "tags that agents use mark no question"
            else:
                assert not any(mark in text for mark in marks), text


_MAKER = {"passages": "encyclopedia"}


def test_answers_can_be_found_in_what_is_shown(writer: WorldWriter) -> None:
    for _ in range(200):
        document = writer.looking_up()
        for place, (text, weight) in enumerate(document):
            if weight == 1.0 and place and document[place - 1][1] != 1.0 and text not in ("yes", "no"):
                shown = "".join(piece for piece, _ in document[:place])
                assert text in shown


def test_what_is_checked_as_right_stands_in_what_is_shown(writer: WorldWriter) -> None:
    verdicts: list[bool] = []
    for _ in range(200):
        document = Checks(writer.source).looking_up()
        given: list[str] = []
        shown = ""
        for text, weight in document:
            if weight == PASSAGE:
                shown += text
            elif weight == GIVEN:
                given.append(text)
            elif weight == VERDICT:
                right = text == RIGHT
                verdicts.append(right)
                if right:
                    answer, _mark = given[-2:]
                    assert answer in shown
    assert 0.3 < sum(verdicts) / len(verdicts) < 0.7, "neither verdict can be guessed"


def test_mistakes_are_mistakes(writer: WorldWriter) -> None:
    mistakes = Mistakes(writer.source)
    for question in writer.source.long[:100]:
        assert normalize(mistakes.answer(question.answers[0], ())) != normalize(question.answers[0])
        asked = [hop.question for hop in question.hops if "#" not in hop.question]
        wrong = mistakes.query(1, question.hops, {}, ())
        assert normalize(wrong) not in map(normalize, asked)
    assert garble("1,234", "Orm", random.Random(1)) != "1,234"


def test_tidying_moves_spaces_and_nothing_else(writer: WorldWriter) -> None:
    for _ in range(100):
        document = writer.write()
        whole, tidied = ("".join(text for text, _ in each) for each in (document, tidy(document)))
        assert whole.rstrip(" ") == tidied
        assert not any(text.endswith(" ") for text, _ in tidy(document))


# --- the probe's rewards, by hand ----------------------------------------------------------------------------


def _played(question: Question, retriever: object) -> Trajectory:
    agent = make_agent("prorag-brief")
    driver = Driver(OracleEngine(agent), retriever)  # type: ignore[arg-type]
    (done,) = driver.run([lambda: episode(agent, question, EpisodeConfig(k=1), 0)])
    assert done.value is not None
    return done.value


def test_gold_steps_earn_all_there_is(question: Question, retriever: object) -> None:
    trajectory = _played(question, retriever)
    assert outcome(trajectory) == 1.0
    assert step_rewards(trajectory) == [1.0, 1.0, 1.0, 1.0, 1.0]


def test_a_step_is_blamed_for_itself_alone(question: Question, retriever: object) -> None:
    good = _played(question, retriever)
    second = good.steps[1]
    wrong = replace(second, action=replace(second.action, content="Bert Lom"))
    bad = replace(good, steps=(good.steps[0], wrong, *good.steps[2:]))
    assert step_rewards(bad) == [1.0, 0.0, 1.0, 1.0, 1.0]
    better, worse = advantages([good, bad], weight=1.0)
    assert [round(value, 2) for value in better] == [0, 1, 0, 0, 0]
    assert [round(value, 2) for value in worse] == [0, -1, 0, 0, 0]
    assert advantages([good, bad], weight=0.0) == [[0.0] * 5, [0.0] * 5], "their answers are the same"


def test_only_tokens_of_the_policy_get_an_advantage(question: Question, retriever: object) -> None:
    trajectory = _played(question, retriever)
    numbered = tuple(
        replace(
            step,
            read=tuple(replace(segment, tokens=(1, 2)) for segment in step.read),
            written=replace(step.written, tokens=(3,)),
        )
        for step in trajectory.steps
    )
    ids, weights = flatten(replace(trajectory, steps=numbered), [0.5] * 5)
    assert [weight for token, weight in zip(ids, weights) if token == 3] == [0.5] * 5
    assert not any(weight for token, weight in zip(ids, weights) if token != 3)
