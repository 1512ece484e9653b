"""How long the transcripts of a recipe are: steps, tokens read, tokens written.

In: the shared settings of a recipe. Out: a `TranscriptProfile`: the one stored in `constants.yaml` for this agent, data
and number of passages, or one counted in gold transcripts, which the oracle replays on some train questions. A trained
policy writes about as much as the oracle; an untrained one may write more.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from stepladder.agents import Play
from stepladder.core.errors import StepladderError
from stepladder.core.trace import Segment, Trajectory
from stepladder.data.sampling import sample_questions
from stepladder.driver import Driver
from stepladder.explore.episode import episode
from stepladder.oracle.engine import OracleEngine
from stepladder.pipeline.resources import RunContext, SharedConfig

#: Train questions whose gold transcripts are counted.
_COUNTED = 64


@dataclass(frozen=True, slots=True)
class TranscriptProfile:
    """Means over episodes, in tokens."""

    #: Steps of an episode, and how many of them search.
    steps: float
    searches: float
    #: Tokens that the policy writes, and all others, each counted once: prompts, passages.
    written: float
    read: float
    #: Contexts per episode: 1, or one per step for an agent that starts a new context at every step.
    contexts: float
    #: The longest context of the counted episodes.
    longest: int
    #: Passages of the corpus.
    passages: int
    #: Where the figures are from.
    source: str

    @property
    def tokens(self) -> float:
        """Tokens of an episode."""
        return self.written + self.read

    @property
    def context(self) -> float:
        """Tokens of one context: a training example."""
        return self.tokens / self.contexts


def count_transcripts(shared: SharedConfig, questions: int = _COUNTED, tokenizer: Any = None) -> TranscriptProfile:
    """The profile of the gold transcripts of some train questions. Needs the data and the policy's tokenizer."""
    from stepladder.models.loading import load_tokenizer  # imports transformers

    context = RunContext(shared, Console(quiet=True), prompted=None)
    known = [each for each in context.split("train") if each.answers and (each.hops or not context.agent.searches)]
    if not known:
        raise StepladderError(
            "the lengths of transcripts are counted in gold transcripts, and no train question has a gold "
            "decomposition: give the lengths with --tokens-written and --tokens-read"
        )
    tokenizer = tokenizer or load_tokenizer(shared.policy)
    agent, limits = context.agent.playing(Play()), context.episode()
    driver = Driver(OracleEngine(agent, 0), context.retriever)
    chosen = sample_questions(known, questions, 0)
    played = [each.value for each in driver.run([_job(agent, question, limits) for question in chosen])]
    found = [_lengths(each, tokenizer) for each in played if each is not None and each.steps]
    context.close()
    if not found:
        raise StepladderError("no gold transcript could be played: check the data and the index of the recipe")
    steps, searches, written, read, contexts = (
        sum(values) / len(found) for values in zip(*(each[:5] for each in found))
    )
    return TranscriptProfile(
        round(steps, 2),
        round(searches, 2),
        round(written, 1),
        round(read, 1),
        round(contexts, 2),
        max(each[5] for each in found),
        len(context.data.passages or ()),
        f"counted in {len(found)} gold transcripts",
    )


def _job(agent: Any, question: Any, limits: Any) -> Any:
    return lambda: episode(agent, question, limits, 0)


def _lengths(trajectory: Trajectory, tokenizer: Any) -> tuple[float, float, float, float, float, int]:
    """Steps, searches, tokens written, tokens read, contexts, and the tokens of the longest context."""
    written = read = 0
    contexts = [0]
    for number, step in enumerate(trajectory.steps):
        if step.restarts and number:
            contexts.append(0)
        here, added = _tokens(step.written, tokenizer), sum(_tokens(each, tokenizer) for each in step.read)
        contexts[-1] += here + added
        written, read = written + here, read + added
    searches = len(trajectory.queries)
    return len(trajectory.steps), searches, written, read, len(contexts), max(contexts)


def _tokens(segment: Segment, tokenizer: Any) -> int:
    return len(segment.tokens) or len(tokenizer(segment.text, add_special_tokens=False)["input_ids"])


def mean_profile(profiles: Sequence[TranscriptProfile]) -> TranscriptProfile:
    """The mean of the profiles of several data sets."""
    count = len(profiles)

    def mean(values: Iterable[float]) -> float:
        return sum(values) / count

    return TranscriptProfile(
        mean(each.steps for each in profiles),
        mean(each.searches for each in profiles),
        mean(each.written for each in profiles),
        mean(each.read for each in profiles),
        mean(each.contexts for each in profiles),
        max(each.longest for each in profiles),
        sum(each.passages for each in profiles),
        profiles[0].source,
    )


def within_limits(profile: TranscriptProfile, max_steps: int, max_tokens: int) -> TranscriptProfile:
    """The profile of episodes with at most so many steps, and tokens per step."""
    share = min(max_steps / profile.steps, 1.0)
    cut = replace(profile, steps=profile.steps * share, searches=profile.searches * share, read=profile.read * share)
    return replace(cut, written=min(profile.written * share, cut.steps * max_tokens))
