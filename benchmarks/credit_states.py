"""True advantages of actions: states of Atlas with four actions each, and 96 continuations of every action.

    stepladder run prorag-nano --out runs/nano --only sft
    python benchmarks/credit_states.py --run runs/nano --out benchmarks/data/credit-states.jsonl.gz

In: a run with a policy (stage `sft`) and dev questions of its data. Of each question the policy plays one episode. From
a random state along it 32 steps are sampled; states with fewer than four different actions are passed over, and the
next state of the episode is tried. Each of the four most frequent actions is then continued to the end 96 times, at the
temperature of training, with everything else as in a rollout of GRPO: 64 to know what the action is worth, 32 for
estimators to guess it from.

Out: one JSON line per state, of texts alone, from which `credit_estimators.py` plays the episodes again:

question  the id of the question
prefix    the steps before the state
actions   text, how many of the 32 samples had it, and for each continuation its steps and the F1 of its answer

The value of an action is the mean F1 of its first 64 continuations; its advantage is that value minus the mean of all.
Results are kept in OUT.parts as soon as a question is done; the same command goes on with the others.
"""

import argparse
import gzip
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from stepladder.agents.base import Agent
from stepladder.core.answer_metrics import score
from stepladder.core.errors import StepladderError
from stepladder.core.requests import Algorithm
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Question, Trajectory
from stepladder.driver import Driver
from stepladder.driver.gather import gather
from stepladder.explore.episode import Candidate, EpisodeConfig, candidates, initial_state, run_to_end
from stepladder.pipeline.recipe import load_recipe
from stepladder.pipeline.resources import RunContext

ACTIONS, SAMPLES = 4, 32


def texts(trajectory: Trajectory, first: int = 0) -> list[str]:
    """What the policy wrote, step by step."""
    return [step.written.text for step in trajectory.steps[first:]]


def state_with_actions(
    agent: Agent, question: Question, settings: EpisodeConfig, seed: int
) -> Algorithm[tuple[Trajectory, list[Candidate], int] | None]:
    """A state along an episode, its most frequent actions, and how many states were passed over for it."""
    start = yield from initial_state(agent, question, settings, seed)
    played = yield from run_to_end(agent, start, settings, seed)
    places = list(range(len(played.steps)))
    random.Random(seed_of(seed, "places")).shuffle(places)
    for passed_over, place in enumerate(places):
        state = replace(played, steps=played.steps[:place], stop=None)
        seeds = [seed_of(seed, "action", place, sample) for sample in range(SAMPLES)]
        found = yield from candidates(agent, state, settings, seeds)
        found = [each for each in found if len(each.trajectory.steps) > place]
        if len(found) >= ACTIONS:
            return state, sorted(found, key=lambda each: -each.count)[:ACTIONS], passed_over
    return None


def measure(
    agent: Agent, question: Question, settings: EpisodeConfig, seed: int, continuations: int
) -> Algorithm[dict[str, Any]]:
    """One line of the file; without `actions` if no state of the question has enough of them."""
    found = yield from state_with_actions(agent, question, settings, seed)
    if found is None:
        return {"question": question.id}
    state, actions, passed_over = found
    place = len(state.steps)
    measured = []
    for number, action in enumerate(actions):
        if action.trajectory.stop is None:
            ended = yield from gather(
                run_to_end(agent, action.trajectory, settings, seed_of(seed, "continuation", number, each))
                for each in range(continuations)
            )
        else:
            ended = [action.trajectory]  # an answer, or the end: its value is known
        played = [each for each in ended if isinstance(each, Trajectory)]
        if not played:
            raise next(each for each in ended if isinstance(each, Exception))
        measured.append(
            {
                "text": texts(action.trajectory, place)[0],
                "kind": action.trajectory.steps[place].action.kind.value,
                "count": action.count,
                "continuations": [texts(each, place + 1) for each in played],
                "f1": [round(score(each).f1, 4) for each in played],
            }
        )
    return {"question": question.id, "passed_over": passed_over, "prefix": texts(state), "actions": measured}


def read(file: Path) -> list[dict[str, Any]]:
    """The lines of a file, plain or compressed; none if it is not there."""
    if not file.is_file():
        return []
    text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    return [json.loads(line) for line in text.splitlines()]


def rounds(questions: Sequence[Question], done: set[str], size: int) -> Iterator[list[Question]]:
    """The questions that are not done yet, some at a time."""
    left = [each for each in questions if each.id not in done]
    for first in range(0, len(left), size):
        yield left[first : first + size]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a run folder with the stage sft")
    parser.add_argument("--out", type=Path, default=Path("credit-states.jsonl.gz"))
    parser.add_argument("--states", type=int, default=200)
    parser.add_argument("--continuations", type=int, default=96)
    parser.add_argument("--split", default="dev")
    parser.add_argument("--at-once", type=int, default=16, help="questions; each has up to 4 x 96 episodes at a time")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.run is None:
        print("left out: it needs --run RUN, with the stage sft")
        return 0
    recipe = load_recipe(str(chosen.run / "recipe.yaml"), [f"batch_size={chosen.batch_size}"])
    context = RunContext(recipe.shared)
    settings = replace(context.episode(), sampling=replace(context.episode().sampling, temperature=1.0))
    questions = context.split(chosen.split)
    parts = chosen.out.with_name(chosen.out.name + ".parts")
    parts.parent.mkdir(parents=True, exist_ok=True)
    lines = {line["question"]: line for line in read(parts)}
    began = time.monotonic()
    with context.engine(str(chosen.run / "sft" / "policy")) as engine, parts.open("a", encoding="utf-8") as kept:
        driver = Driver(engine, context.retriever, in_flight=chosen.at_once)
        for some in rounds(questions, set(lines), chosen.at_once):
            if sum("actions" in line for line in lines.values()) >= chosen.states:
                break
            jobs = [
                partial(measure, context.agent, each, settings, seed_of(chosen.seed, each.id), chosen.continuations)
                for each in some
            ]
            for outcome in driver.run(jobs):
                if outcome.value is None:
                    raise StepladderError(f"a state could not be measured: {outcome.failure}")
                lines[outcome.value["question"]] = outcome.value
                kept.write(json.dumps(outcome.value, ensure_ascii=False) + "\n")
            kept.flush()
            found = sum("actions" in line for line in lines.values())
            print(f"{len(lines)} questions, {found} states, {time.monotonic() - began:.0f} s", flush=True)
    states = [lines[each.id] for each in questions if "actions" in lines.get(each.id, {})][: chosen.states]
    with gzip.GzipFile(chosen.out, "wb", mtime=0) as out:
        for line in states:
            out.write((json.dumps(line, ensure_ascii=False) + "\n").encode())
    print(f"{len(states)} states of {len(lines)} questions in {chosen.out}, {chosen.out.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
