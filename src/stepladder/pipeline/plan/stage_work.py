"""What a stage does, in tokens: what it generates, scores and trains.

In: a stage of a recipe, the lengths of transcripts, what earlier stages wrote. Out: a `StageWork`. Counts that the
recipe fixes (questions, samples, epochs) are exact; those that depend on the policy (branches of trees, pairs, kept
samples) are estimates, with a low and a high factor.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stepladder.pipeline.plan.transcript_profile import TranscriptProfile
from stepladder.pipeline.recipe import Recipe, Stage
from stepladder.pipeline.resources import BASE, ORACLE, SERVER
from stepladder.train.grpo.credit.base import Need
from stepladder.train.loop.config import selection_questions

#: Kinds of stages that train a policy.
_POLICY_KINDS = ("sft", "rft", "dpo", "grpo")
#: Questions of a split whose size the recipe does not say.
_SPLIT = 1000
#: Transcripts among which the longest one was counted.
_COUNTED = 200
#: A judge's reply, and what it reads beside the transcript, in tokens.
_JUDGE_WRITTEN, _JUDGE_READ = 80, 600


@dataclass(frozen=True, slots=True)
class Generation:
    """Text that the policy writes."""

    what: str
    #: Tokens written, other tokens of these contexts, and searches.
    written: float
    read: float
    searches: float
    #: Transcripts that could be generated together, and their mean length.
    at_once: float
    context: float
    #: Requests to the engine, one per step; and those whose keys and values may be in the cache together.
    requests: float
    cached: float
    #: `shared`: the engine of the recipe. `trainer`: that of a trainer, with the weights in training.
    by: str = "shared"
    #: The amount may be between these factors of the estimate.
    low: float = 0.9
    high: float = 1.15
    #: Decoding steps, if they are known.
    steps: float | None = None
    #: How many times as many decoding steps there are as if all rows were as long as the mean.
    tail: float = 1.0
    #: Engines that are started for it, beside the first of the stage.
    starts: int = 0
    #: Times that the engine starts with an empty cache and new graphs, beside the first.
    resets: int = 0


@dataclass(frozen=True, slots=True)
class Training:
    """Forward and backward passes."""

    #: Tokens of all examples and epochs, and those that are predicted.
    tokens: float
    predicted: float
    updates: int
    #: Examples per update, tokens of a mean and of the longest one.
    batch: int
    example: float
    longest: int
    #: Further forward passes over the same tokens: a reference model.
    extra_forward: float = 0.0
    #: Times that a checkpoint is written.
    saves: int = 1
    low: float = 0.9
    high: float = 1.15
    #: Examples that are made from trees and chains.
    made: float = 0.0
    #: Tokens with padding, and forward and backward passes, if they are known.
    padded: float | None = None
    passes: float | None = None


@dataclass(frozen=True, slots=True)
class StageWork:
    """Everything that a stage does."""

    generations: tuple[Generation, ...] = ()
    training: Training | None = None
    #: Tokens that a reward model reads.
    scored: float = 0.0
    #: Calls of a judge or a model behind a server, and their tokens.
    calls: float = 0.0
    call_tokens: float = 0.0
    #: What was assumed.
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Outputs:
    """Estimates of what earlier stages wrote, by stage."""

    #: Trees: how many, nodes per tree.
    trees: dict[str, tuple[float, float]] = field(default_factory=dict)
    pairs: dict[str, float] = field(default_factory=dict)


class WorkModel:
    """The work of the stages of a recipe, in order."""

    def __init__(self, recipe: Recipe, profile: TranscriptProfile, trees: Mapping[str, float]) -> None:
        """`trees`: the constants of tree search."""
        self.recipe, self.profile, self.constants = recipe, profile, trees
        self.outputs = Outputs()
        self._policies = 0

    def of(self, stage: Stage) -> StageWork:
        """The work of the next stage."""
        kind = stage.kind.replace("-", "_")
        unknown = "its dev evaluations are counted in the stages that train" if kind == "accept" else "not estimated"
        described: StageWork = getattr(self, f"_{kind}", lambda _: StageWork(notes=(unknown,)))(stage)
        if stage.kind in _POLICY_KINDS:
            described = replace(described, generations=(*described.generations, *self._comparison()))
        player = stage.inputs.get("policy")
        if player == ORACLE:
            return StageWork(notes=("the oracle plays: no model",))
        if player == SERVER or (player == BASE and self.recipe.shared.engine == "openai"):
            written = sum(each.written for each in described.generations)
            read = sum(each.read for each in described.generations)
            calls = written / max(self.profile.written, 1) * self.profile.steps
            note = "played by a model behind a server: its tokens, without cached prefixes"
            return StageWork(calls=calls, call_tokens=written + read, notes=(*described.notes, note))
        return described

    def _comparison(self) -> tuple[Generation, ...]:
        """From the second policy on, the policies of a run are compared on the same dev questions."""
        self._policies += 1
        questions = max(selection_questions(stage.settings) for stage in self.recipe.stages)
        questions = min(questions, self.recipe.shared.data.holdout or questions)
        compared = {1: 0, 2: 2}.get(self._policies, 1)
        if not questions or not compared:
            return ()
        return (replace(self._episodes("comparison", compared * questions, at_once=questions), starts=compared),)

    def _episodes(self, what: str, count: float, *, by: str = "shared", at_once: float | None = None) -> Generation:
        profile = self.profile
        written, read, searches = (count * each for each in (profile.written, profile.read, profile.searches))
        requests, together = count * profile.steps, at_once or count
        # Trainers drop the cache after every rollout and dev evaluation.
        cached = together * profile.steps if by == "trainer" else requests
        rows = min(together, self.recipe.shared.batch_size)
        tail = self._tail(rows)
        if by == "shared":  # others take the places of those that end, until none is left
            tail = 1 + (tail - 1) * rows / count
        return Generation(what, written, read, searches, together, profile.context, requests, cached, by, tail=tail)

    def _tail(self, rows: float) -> float:
        """Decoding continues until the longest of the rows ends: the more rows, the longer it is."""
        spread = self.profile.longest / self.profile.context - 1
        return 1 + spread * min(math.log(max(rows, 1)) / math.log(_COUNTED), 1.0)

    def _dev(self, settings: Any, updates: int, per_epoch: int) -> tuple[tuple[Generation, ...], int]:
        """The dev evaluations of a trainer, and how many checkpoints are written."""
        every = settings.eval_steps or per_epoch
        times = max(math.ceil(updates / max(every, 1)), 1)
        questions = getattr(settings, "dev_questions", 0)
        scored = times + int(bool(getattr(settings, "eval_on_start", False)))
        if not questions:
            return (), times
        played = self._episodes("dev", questions * scored, by="trainer", at_once=questions)
        return (replace(played, resets=scored - 1),), times

    def _eval(self, stage: Stage) -> StageWork:
        settings: Any = stage.settings
        count = settings.limit or _SPLIT
        notes = () if settings.limit else (f"the split is assumed to have {_SPLIT:,} questions",)
        guide = settings.guide
        if guide is None:
            return StageWork((self._episodes("episodes", count),), notes=notes)
        times = guide.simulations if guide.strategy == "mcts" else guide.n
        times *= guide.beams if guide.strategy == "beam" else 1
        played = self._episodes("guided episodes", count * times, at_once=count * guide.n)
        # Candidates of one state share what they read.
        shared = replace(played, read=played.read / 2, low=0.5, high=1.2)
        scored = count * times * self.profile.tokens if guide.by == "prm" else 0.0
        return StageWork((shared,), scored=scored, notes=notes)

    def _prm_eval(self, stage: Stage) -> StageWork:
        settings: Any = stage.settings
        count = settings.questions * settings.num_generations
        # The episodes, and gold chains with eight corrupted copies.
        scored = (count + 9 * settings.questions) * self.profile.tokens
        if settings.score_trees:
            trees, nodes = self._trees_of(stage)
            scored += trees * nodes * self.profile.tokens / 2
        return StageWork((self._episodes("episodes", count),), scored=scored)

    def _explore(self, stage: Stage) -> StageWork:
        settings: Any = stage.settings
        profile, constants = self.profile, self.constants
        trees, simulations = settings.questions or _SPLIT, settings.simulations
        if settings.patience is not None:
            simulations = min(simulations, round(settings.patience * constants["patience"]))
        low, high = self._steps_per_tree(settings, simulations)
        # Samples of a trained policy hardly differ; of an untrained one they do.
        steps = low if stage.inputs.get("policy") != BASE else math.sqrt(low * high)
        nodes = 1 + steps * constants["nodes"]
        self.outputs.trees[stage.name] = (trees, nodes)
        together = min(settings.parallel, constants["parallel"], constants["parallel_width"] * settings.width)
        rows = min(trees, settings.max_concurrent_trees) * together
        generation = Generation(
            "trees",
            trees * steps * profile.written / profile.steps,
            # Samples of one state read it once.
            trees * nodes * profile.read / profile.steps,
            trees * nodes * profile.searches / profile.steps,
            rows,
            profile.context,
            constants["asked"] * trees * steps,
            1.3 * trees * steps,
            low=0.6 * low / steps,
            high=max(high / steps, 1.2),
            tail=constants["tail"],
        )
        calls = trees * simulations if settings.llm is not None else 0.0
        note = f"{steps:,.0f} steps per tree; {high:,.0f} if all samples differ"
        return StageWork((generation,), calls=calls, call_tokens=calls * (_JUDGE_READ + _JUDGE_WRITTEN), notes=(note,))

    def _steps_per_tree(self, settings: Any, simulations: int) -> tuple[float, float]:
        """Steps generated for a tree if samples hardly differ, and if all of them do."""
        constants, steps = self.constants, self.profile.steps
        few = constants["peaked"] * settings.width ** constants["width_power"]
        few *= simulations ** constants["simulations_power"] * steps / constants["steps"]
        many = simulations * (1 + (steps / 2 if settings.evaluate == "rollout" else 0.0))
        return min(few, many), many

    def _rank(self, stage: Stage) -> StageWork:
        settings: Any = stage.settings
        profile = self.profile
        trees = settings.questions or _SPLIT
        self.outputs.trees[stage.name] = (trees, 1 + profile.steps * min(settings.n, 4))
        played = self._episodes(
            "actions", trees * settings.n, at_once=min(trees, settings.max_concurrent_trees) * settings.n
        )
        shared = replace(played, read=trees * profile.read, searches=trees * profile.searches, low=0.8, high=1.2)
        calls = trees * profile.steps if settings.llm is not None else 0.0
        scored = trees * settings.n * profile.tokens if settings.judge == "prm" else 0.0
        return StageWork((shared,), scored=scored, calls=calls, call_tokens=calls * (_JUDGE_READ + _JUDGE_WRITTEN))

    def _trees_of(self, stage: Stage) -> tuple[float, float]:
        source = stage.inputs.get("trees", "")
        return self.outputs.trees.get(source) or next(iter(self.outputs.trees.values()), (0.0, 0.0))

    def _pairs(self, stage: Stage) -> StageWork:
        settings: Any = stage.settings
        trees, nodes = self._trees_of(stage)
        found = trees * nodes * self.constants["pairs"]
        self.outputs.pairs[stage.name] = found
        calls = trees * nodes / 3 if settings.llm is not None else 0.0
        note = f"about {found:,.0f} pairs: depends on the trees"
        return StageWork(calls=calls, call_tokens=calls * (_JUDGE_READ + _JUDGE_WRITTEN), notes=(note,))

    def _pairs_file(self, stage: Stage) -> StageWork:
        self.outputs.pairs[stage.name] = _SPLIT
        return StageWork(notes=(f"the file is assumed to have {_SPLIT:,} pairs",))

    def _fine_tuning(self, settings: Any, transcripts: float, low: float, high: float) -> tuple[Training, Any]:
        profile = self.profile
        examples = max(transcripts * profile.contexts, 1.0)
        per_epoch = math.ceil(examples / settings.batch_size)
        updates = math.ceil(settings.num_train_epochs * per_epoch)
        dev, saves = self._dev(settings, updates, per_epoch)
        tokens = settings.num_train_epochs * transcripts * profile.tokens
        share = profile.written / profile.tokens
        training = Training(
            tokens, tokens * share, updates, settings.batch_size, profile.context, profile.longest,
            saves=saves, low=low, high=high,
        )  # fmt: skip
        return training, dev

    def _sft(self, stage: Stage) -> StageWork:
        settings: Any = stage.settings
        sampled: tuple[Generation, ...] = ()
        calls = 0.0
        if settings.source == "trees":
            transcripts, low, high = self._trees_of(stage)[0] * 0.5, 0.5, 1.6
        elif settings.source in ("gold", "mined"):
            transcripts, low, high = settings.questions * self.constants["playable"], 0.85, 1.2
        else:
            transcripts, low, high = settings.questions * settings.keep * 0.5, 0.4, 1.6
            episodes = settings.questions * settings.num_generations
            if settings.source == "bootstrap":
                sampled = (self._episodes("demonstrations", episodes, by="trainer"),)
            else:
                calls = episodes * self.profile.steps
        training, dev = self._fine_tuning(settings, transcripts, low, high)
        return StageWork(
            (*sampled, *dev), training, calls=calls, call_tokens=calls * self.profile.tokens / 2,
            notes=(f"{transcripts * self.profile.contexts:,.0f} examples",),
        )  # fmt: skip

    def _rft(self, stage: Stage) -> StageWork:
        settings: Any = stage.settings
        episodes = settings.questions * settings.num_generations
        kept = settings.questions * min(settings.keep, settings.num_generations) * self.constants["kept"]
        training, dev = self._fine_tuning(settings, kept, 0.3, 1.8)
        at_once = min(episodes, 128 * settings.num_generations)  # questions are sampled in chunks of 128
        samples = self._episodes("samples", episodes, by="trainer", at_once=at_once)
        calls = 0.0
        if settings.sampled_by == "server":
            calls, generations = episodes * self.profile.steps, dev
        else:
            generations = (samples, *dev)
        scored = episodes * self.profile.tokens if settings.threshold is not None else 0.0
        note = f"about {kept:,.0f} of {episodes:,} samples kept: depends on the policy"
        return StageWork(generations, training, scored, calls, calls * self.profile.tokens / 2, (note,))

    def _prm(self, stage: Stage) -> StageWork:
        settings: Any = stage.settings
        profile = self.profile
        trees, nodes = self._trees_of(stage)
        generations: tuple[Generation, ...] = ()
        if settings.objective == "pairs":
            examples = 0.9 * self.outputs.pairs.get(stage.inputs.get("pairs", ""), _SPLIT)
            # A state is read once, with its two steps.
            example = profile.context * 0.65 + 2 * profile.written / profile.steps
        else:
            # Every branch of a tree is an example, and every gold chain, three control chains and its corrupted copies.
            branches = trees * nodes * self.constants["branches"]
            chains = settings.chains * (4 + settings.corruptions) * self.constants["chains"]
            episodes = settings.episodes * settings.num_generations
            examples, example = 0.9 * (branches + episodes) + chains, profile.context * self.constants["branch_length"]
            if episodes:
                generations = (self._episodes("episodes", episodes),)
        per_epoch = math.ceil(max(examples, 1) / settings.batch_size)
        updates = math.ceil(settings.num_train_epochs * per_epoch)
        tokens = settings.num_train_epochs * examples * example
        saves = max(math.ceil(updates / (settings.eval_steps or per_epoch)), 1)
        longest = min(settings.max_length or profile.longest, profile.longest)
        training = Training(  # a tenth of the examples is held out
            tokens, 0.0, updates, settings.batch_size, example, longest,
            extra_forward=0.11, saves=saves, low=0.6, high=1.6, made=examples,
        )  # fmt: skip
        return StageWork(generations, training, notes=(f"about {examples:,.0f} examples: depends on the trees",))

    def _dpo(self, stage: Stage) -> StageWork:
        settings: Any = stage.settings
        profile = self.profile
        pairs = 0.9 * self.outputs.pairs.get(stage.inputs.get("pairs", ""), _SPLIT)
        example = profile.context * (0.65 if profile.contexts < 1.5 else 1.0)
        per_epoch = math.ceil(max(pairs, 1) / settings.batch_size)
        updates = math.ceil(settings.num_train_epochs * per_epoch)
        dev, saves = self._dev(settings, updates, per_epoch)
        tokens = settings.num_train_epochs * pairs * 2 * example
        training = Training(
            tokens, tokens, updates, 2 * settings.batch_size, example, profile.longest,
            extra_forward=1.0, saves=saves, low=0.5, high=1.8,
        )  # fmt: skip
        return StageWork(dev, training, notes=(f"about {pairs:,.0f} pairs: depends on the trees",))

    def _grpo(self, stage: Stage) -> StageWork:
        settings: Any = stage.settings
        profile = self.profile
        per_update, continued = settings.batch_size // settings.num_generations, self._continued(settings)
        batches = max(math.floor(settings.num_train_epochs * settings.questions / per_update), 1)
        # As shares of the groups of an update: those with a signal, and those that are sampled.
        empty = 1 - self.constants["used_groups"]
        most = 1.0 + settings.refill
        used = 1 - empty**most if settings.drop_zero_std_groups else 1.0
        sampled = sum(empty**number for number in range(1 + settings.refill))
        if settings.token_budget is not None:
            most, written = sampled, sampled * settings.batch_size * max(profile.written, 1)
            batches = min(batches, math.ceil(settings.token_budget / written / (1 + continued)))
        updates, episodes = batches * settings.num_iterations, sampled * batches * settings.batch_size
        dev, _ = self._dev(settings, updates, max(settings.questions // per_update, 1) * settings.num_iterations)
        dev = tuple(replace(each, resets=0) for each in dev)  # it keeps the engine's memory
        rollouts = self._episodes("rollouts", episodes, by="trainer", at_once=settings.batch_size)
        rollouts = replace(rollouts, low=rollouts.low / sampled, high=rollouts.high * most / sampled)
        extra = (1.0 if settings.beta else 0.03) + (1.0 if settings.num_iterations > 1 else 0.0)
        every = min(settings.eval_steps or 5, 5)
        trained = used * updates * settings.batch_size
        training = Training(
            trained * profile.tokens, trained * profile.written, updates, settings.batch_size, profile.context,
            profile.longest, extra_forward=extra, saves=math.ceil(updates / every), low=0.7, high=1.2,
        )  # fmt: skip
        # For the likelihood of answers every state is read, on average half an episode.
        share = profile.steps / 2 if Need.ANSWER_LOGPS in settings.needs else float(settings.needs_reward_model)
        at_once = 2 * continued * settings.batch_size
        more = self._episodes("continuations", continued * episodes, by="trainer", at_once=at_once)
        generations = (rollouts, more, *dev) if continued else (rollouts, *dev)
        notes = (f"{updates:,} updates of {settings.batch_size:,} episodes",)
        return StageWork(generations, training, share * episodes * profile.tokens, notes=notes)

    def _continued(self, settings: Any) -> float:
        """Episodes that GRPO plays on per episode: from every state but the first, on average half of one."""
        steps = max(self.profile.steps - 1, 0) if Need.CONTINUATIONS in settings.needs else 0
        return float(settings.num_continuations * steps / 2)
