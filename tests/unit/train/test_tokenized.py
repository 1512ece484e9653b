"""From trajectories to examples: whose tokens they are, what they weigh, and how batches are made of them."""

from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from stepladder.agents import make_agent
from stepladder.core.errors import StepladderError
from stepladder.core.trace import UNKNOWN_TOKENS, Action, ActionKind, Author, Segment, Step, StopReason, Trajectory
from stepladder.driver import Driver
from stepladder.engines.transformers.engine import TransformersEngine
from stepladder.explore.episode import EpisodeConfig, episode
from stepladder.models.length_batches import LengthGroupedSampler
from stepladder.models.tiny import tiny_model, tiny_tokenizer
from stepladder.oracle.engine import OracleEngine
from stepladder.train.transcripts.fine_tune import TranscriptTrainer, collate, weighted_nll
from stepladder.train.transcripts.tokenized import Example, expect_token_ids, token_weights, tokenize_trajectory
from tests.support.samples import QUESTION, WordRetriever

ENGINE = TransformersEngine(tiny_model(), tiny_tokenizer())
END = ENGINE.tokenizer.eos_token_id
WEIGHTS = {"<answer>": 5.0, "</answer>": 5.0, "</step>": 2.0}
ANSWER = Action(ActionKind.ANSWER, "Velm")


def transcript(*texts: tuple[Author, str], restarts: bool = False) -> Trajectory:
    """A trajectory of these segments; every one of the policy ends a step."""
    steps: list[Step] = []
    read: list[Segment] = []
    for author, text in texts:
        if author is Author.POLICY:
            steps.append(Step(tuple(read), Segment(author, text), ANSWER, restarts=restarts))
            read = []
        else:
            read.append(Segment(author, text))
    return Trajectory(QUESTION, "test", tuple(steps), StopReason.ANSWERED)


def test_a_whole_gold_transcript_is_one_example() -> None:
    agent = make_agent("prorag")
    driver = Driver(OracleEngine(agent), WordRetriever())
    (outcome,) = driver.run([lambda: episode(agent, QUESTION, EpisodeConfig(), 0)])
    assert outcome.value is not None
    (example,) = tokenize_trajectory(outcome.value, ENGINE, WEIGHTS)

    texts = [segment.text for segment in outcome.value.context()]
    assert ENGINE.decode(example.tokens) == "".join(texts) + "<|end|>"
    written = [token for token, mine in zip(example.tokens, example.weights) if mine]
    assert ENGINE.decode(written) == "".join(step.written.text for step in outcome.value.steps) + "<|end|>"
    # One token a byte: the weights can be read off the text.
    said = outcome.value.steps[-1].written.text
    tail = example.weights[-len(said) - 1 : -1]
    assert "".join(c for c, weight in zip(said, tail) if weight == 5) == "<answer></answer>"
    assert "".join(c for c, weight in zip(said, tail) if weight == 2) == "</step>"


def test_stored_ids_are_used_as_they_are() -> None:
    """Even ids that no tokenizer would give, and without an end that the engine did not write."""
    read = Segment(Author.PROMPT, "Q", (7, 8), vocabulary=ENGINE.encoding.vocabulary)
    written = Segment(Author.POLICY, "ab", (ord("a"), 9), (-1.0, -2.0), ENGINE.encoding.vocabulary)
    (example,) = tokenize_trajectory(Trajectory(QUESTION, "test", (Step((read,), written, ANSWER),)), ENGINE, WEIGHTS)
    assert example == Example("q1", (7, 8, ord("a"), 9), (0.0, 0.0, 1.0, 1.0))


def test_an_end_of_sequence_follows_only_the_end_of_a_transcript() -> None:
    (example,) = tokenize_trajectory(
        transcript((Author.PROMPT, "Q"), (Author.POLICY, "one"), (Author.ENVIRONMENT, "!"), (Author.POLICY, "two")),
        ENGINE,
        {},
    )
    assert ENGINE.decode(example.tokens) == "Qone!two<|end|>"
    assert example.weights[-1] == 1.0


def test_a_restart_begins_another_example() -> None:
    trajectory = transcript((Author.PROMPT, "A"), (Author.POLICY, "1"), (Author.PROMPT, "B"), (Author.POLICY, "2"))
    restarted = replace(trajectory, steps=(trajectory.steps[0], replace(trajectory.steps[1], restarts=True)))
    assert [ENGINE.decode(each.tokens[:-1]) for each in tokenize_trajectory(restarted, ENGINE, {})] == ["A1", "B2"]


def test_a_tag_in_a_document_weighs_nothing() -> None:
    (example,) = tokenize_trajectory(transcript((Author.PROMPT, "<answer>"), (Author.POLICY, "x")), ENGINE, WEIGHTS)
    assert example.weights == (0.0,) * 8 + (1.0, 1.0)


def test_characters_of_several_tokens_do_not_shift_a_tag() -> None:
    text = "😀é<answer>😀</answer>ü"
    (example,) = tokenize_trajectory(transcript((Author.PROMPT, "Q"), (Author.POLICY, text)), ENGINE, WEIGHTS)
    heavy = [token for token, weight in zip(example.tokens, example.weights) if weight == 5]
    assert ENGINE.decode(heavy) == "<answer></answer>"


def test_a_token_shared_by_a_tag_and_other_text_has_the_weight_of_the_tag() -> None:
    # "</step" ">\n<" "answer>"
    assert token_weights("</step>\n<answer>", [6, 9, 16], WEIGHTS) == [2.0, 5.0, 5.0]


author_and_text = st.tuples(st.sampled_from([Author.POLICY, Author.ENVIRONMENT]), st.text(min_size=1, max_size=12))


@settings(max_examples=60)
@given(st.lists(author_and_text, max_size=6), st.sampled_from(["<answer>", "</step>", "a", "é"]))
def test_lengths_agree_and_only_the_policy_weighs(parts: list[tuple[Author, str]], tag: str) -> None:
    trajectory = transcript((Author.PROMPT, "Q " + tag), *parts, (Author.POLICY, "x" + tag))
    (example,) = tokenize_trajectory(trajectory, ENGINE, {tag: 3.0})
    assert len(example.tokens) == len(example.weights)
    wrote = [segment.author is Author.POLICY for segment in trajectory.context() for _ in segment.text.encode()]
    for mine, weight in zip([*wrote, True], example.weights, strict=True):
        assert (weight in (1.0, 3.0)) if mine else (weight == 0.0)


def test_tags_are_found_however_a_tokenizer_cuts_them() -> None:
    """Tokens that hold a part of a tag, or more than a tag."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=["<|end|>"])
    core.train_from_iterator(["x</step><answer>Velm</answer>"] * 9 + ["<answer>a"] * 20, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|end|>")
    engine = TransformersEngine(tiny_model(vocab_size=len(tokenizer)), tokenizer)
    text = "so é</step><answer>Velm é</answer>"
    (example,) = tokenize_trajectory(transcript((Author.PROMPT, "Q"), (Author.POLICY, text)), engine, WEIGHTS)
    said = [(engine.decode((token,)), weight) for token, weight in zip(example.tokens, example.weights)]
    assert any(weight == 5 and len(piece) not in (1, len("<answer>")) for piece, weight in said), said
    for piece, weight in said[1:-1]:
        of_tag = {"<answer": 5, "answer": 5, "step": 2, "Velm": 1, "so": 1}
        for part, expected in of_tag.items():
            if part in piece:
                assert weight == max(value for name, value in of_tag.items() if name in piece) >= expected


def test_what_nano_wrote_is_trained_on_as_its_text_would_be() -> None:
    """Its tags are one token each. The last of every step, which stops a generation, is among what is learnt."""
    engine = TransformersEngine("nano", device="cpu")
    agent = make_agent("prorag-brief")
    driver = Driver(OracleEngine(agent), WordRetriever())
    (outcome,) = driver.run([lambda: episode(agent, QUESTION, EpisodeConfig(), 0)])
    assert outcome.value is not None
    played = replace(
        outcome.value,
        steps=tuple(
            replace(step, read=tuple(map(engine.encode, step.read)), written=engine.encode(step.written))
            for step in outcome.value.steps
        ),
    )
    (from_text,) = tokenize_trajectory(outcome.value, engine, WEIGHTS)
    (from_ids,) = tokenize_trajectory(played, engine, WEIGHTS)
    assert from_text.tokens == (*from_ids.tokens, engine.tokenizer.eos_token_id)
    assert from_text.weights == (*from_ids.weights, 1.0)
    tags = engine.tokenizer.convert_tokens_to_ids(["</step>", "<answer>", "</answer>"])
    heavy = {token: weight for token, weight in zip(from_ids.tokens, from_ids.weights) if weight > 1}
    assert heavy == dict(zip(tags, (2.0, 5.0, 5.0)))
    stops = engine.tokenizer.convert_tokens_to_ids(list(agent.stops))
    learnt = [token for token, weight in zip(from_ids.tokens, from_ids.weights) if weight and token in stops]
    assert len(learnt) == len(played.steps)


# --- batches ------------------------------------------------------------------------------------------------


def test_an_epoch_has_every_example_once_in_batches_of_like_length() -> None:
    lengths = [(7 * n) % 101 for n in range(103)]
    order = LengthGroupedSampler(lengths, batch=4, seed=0)
    first = list(order)
    assert sorted(first) == list(range(103))
    assert first == list(LengthGroupedSampler(lengths, batch=4, seed=0))
    spread = [
        max(lengths[i] for i in first[s : s + 4]) - min(lengths[i] for i in first[s : s + 4]) for s in range(0, 96, 4)
    ]
    assert sum(spread) / len(spread) < 20  # some 60 at random
    order.epoch = 1
    assert list(order) != first


# --- the loss -----------------------------------------------------------------------------------------------

EXAMPLES = [
    Example("a", (5, 6, 7, 8, 9), (0.0, 0.0, 1.0, 5.0, 0.0)),
    Example("b", (1, 2, 3), (0.0, 2.0, 1.0)),
]


def test_the_loss_is_the_weighted_mean_over_policy_tokens() -> None:
    model = tiny_model()
    batch = collate(EXAMPLES)
    total, weight = 0.0, 0.0
    with torch.no_grad():
        for example in EXAMPLES:
            logits_TV = model(torch.tensor([example.tokens])).logits[0]
            for place in range(1, len(example.tokens)):
                nll = -torch.log_softmax(logits_TV[place - 1], 0)[example.tokens[place]].item()
                total += example.weights[place] * nll
                weight += example.weights[place]
        ours = weighted_nll(model, batch) / TranscriptTrainer.loss_weight(Mock(), batch)
    assert ours.item() == pytest.approx(total / weight, rel=1e-5)


def test_what_the_policy_did_not_write_has_no_gradient() -> None:
    logits_BTV = torch.randn(*collate(EXAMPLES)["input_ids"].shape, 11, requires_grad=True)

    class Model:
        logits = logits_BTV

        def __call__(self, **_: object) -> "Model":
            return self

    weighted_nll(Model(), collate(EXAMPLES)).backward()
    assert logits_BTV.grad is not None
    reached = (logits_BTV.grad != 0).any(dim=-1)
    assert reached.nonzero().tolist() == [[0, 1], [0, 2], [1, 0], [1, 1]]


def test_text_of_a_server_is_refused_unless_it_may_be_encoded_here() -> None:
    own = transcript((Author.PROMPT, "Q"), (Author.POLICY, "<answer>Velm</answer>"))
    (step,) = own.steps
    served = replace(own, steps=(replace(step, written=replace(step.written, vocabulary=UNKNOWN_TOKENS)),))
    expect_token_ids([own], reencode=False)  # as of the oracle
    expect_token_ids([served], reencode=True)
    with pytest.raises(StepladderError, match="set reencode to true to train on their text"):
        expect_token_ids([own, served], reencode=False)
    assert tokenize_trajectory(served, ENGINE, {}) == tokenize_trajectory(own, ENGINE, {})
