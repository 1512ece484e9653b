"""The events of one answer, as the page shows them.

In: a policy and a question, or a kept answer to continue. Out: events, each a name and plain data.

    loading    {"seconds"}                                the policy is being loaded
    start      {"answer", "policy", "question", "steps"}  an id to continue from, who answers, steps that stay
    given      {"passages"}                               passages from before the first step
    step       {"number", "thought", "action", "content", "passages", "text", "kinds", "written", ...}
    score      {"number", "score"}                        the reward model's probability that the step is good, or null
    unscored   {"message"}                                why steps have no scores
    answer     {"text", "answered", "stop", "citations", "usage", "seconds", "gold"}  the end of the episode
    error      {"message"}                                the end without an answer
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

from starlette.concurrency import run_in_threadpool

from stepladder.agents.base import Agent
from stepladder.core.errors import StepladderError
from stepladder.core.questions.answer_kinds import score_question
from stepladder.core.requests import Algorithm
from stepladder.core.trace import Question, StopReason, Trajectory
from stepladder.explore.episode import EpisodeConfig, retrieve_passages, run_to_end
from stepladder.explore.written_step import kinds_due, prefix, replace_step
from stepladder.serve.agent.chat_request import read_question
from stepladder.serve.agent.episode_json import answer_text, cite, passages_data, step_data
from stepladder.serve.agent.scheduler import Finished
from stepladder.serve.http.http_errors import HTTPError
from stepladder.serve.studio.playground.asked_policy import AskedPolicy, PolicySource
from stepladder.serve.studio.playground.kept_answers import KeptAnswers
from stepladder.serve.studio.playground.playground_requests import AskRequest, ContinueRequest
from stepladder.serve.studio.playground.told_steps import told_steps

#: Seconds between two looks at whether the browser has left, and two events while a policy is loaded.
TICK = 0.5

Event = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Start:
    """What an answer starts with."""

    question: Question
    #: The steps that stay, and what follows them.
    kept: Trajectory | None
    algorithm: Algorithm[Trajectory]


async def answer_events(
    source: PolicySource, kept: KeptAnswers, request: AskRequest | ContinueRequest
) -> AsyncGenerator[Event | None, None]:
    """The events of an answer. None after every `TICK` seconds without one, so that the caller can look around."""
    began = perf_counter()
    acquiring = asyncio.ensure_future(source.acquire(request.policy))
    try:
        shown = -1
        while not (await asyncio.wait({acquiring}, timeout=TICK))[0]:
            seconds = int(perf_counter() - began)
            yield ("loading", {"seconds": seconds}) if seconds > shown else None
            shown = seconds
        async with aclosing(_answer(acquiring.result(), source, kept, request)) as events:
            async for event in events:
                yield event
    except HTTPError as error:
        yield "error", {"message": error.detail}
    finally:  # if the browser has left, a policy that is being loaded is kept for the next question
        acquiring.add_done_callback(partial(_release, source))


def _release(source: PolicySource, acquired: asyncio.Future[AskedPolicy]) -> None:
    if not acquired.cancelled() and acquired.exception() is None:
        source.release(acquired.result())


async def _answer(
    policy: AskedPolicy, source: PolicySource, kept: KeptAnswers, request: AskRequest | ContinueRequest
) -> AsyncGenerator[Event | None, None]:
    began = perf_counter()
    start = await _start(policy, source, kept, request)
    stays = start.kept
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    def tell(name: str, content: Any) -> None:
        """In the scheduler's thread."""
        loop.call_soon_threadsafe(queue.put_nowait, (name, content))

    told = len(stays.steps) if stays else 0
    algorithm = told_steps(start.algorithm, tell, told=told, scored=policy.scores, live=policy.live)
    queued = policy.scheduler.submit(algorithm)
    answer = kept.keep(policy.key, stays or Trajectory(start.question, ""))
    yield "start", {"answer": answer, "policy": dict(policy.about), "question": start.question.text, "steps": told}
    ending = asyncio.ensure_future(_end(policy, queued, source.answer_seconds, queue))
    written = told + 1 if isinstance(request, ContinueRequest) and request.step is not None else 0
    try:
        while True:
            try:
                name, content = await asyncio.wait_for(queue.get(), TICK)
            except TimeoutError:
                yield None
                continue
            match name:
                case "given":
                    yield "given", {"passages": passages_data(content.given)}
                case "steps":
                    trajectory, first = content
                    kept.keep(policy.key, trajectory, answer)
                    for event in _step_events(policy, trajectory, first, written):
                        yield event
                case "scores":
                    first, scores = content
                    for number, score in enumerate(scores, start=first + 1):
                        yield "score", {"number": number, "score": score}
                case "unscored":
                    yield "unscored", {"message": content}
                case "error":
                    yield "error", {"message": content.detail}
                    return
                case _:
                    trajectory = content.value
                    kept.keep(policy.key, trajectory, answer)
                    yield "answer", _answer_data(trajectory, content, perf_counter() - began)
                    return
    finally:
        ending.cancel()
        policy.scheduler.cancel(queued)


async def _end(policy: AskedPolicy, queued: Any, seconds: float, queue: asyncio.Queue[tuple[str, Any]]) -> None:
    """Put the end of the algorithm into the queue. What the algorithm has told is there already."""
    try:
        async with aclosing(policy.scheduler.events(queued, seconds)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    queue.put_nowait(("end", event))
    except HTTPError as error:
        queue.put_nowait(("error", error))


async def _start(
    policy: AskedPolicy, source: PolicySource, kept: KeptAnswers, request: AskRequest | ContinueRequest
) -> _Start:
    sampling = request.sampling(policy.sampling)
    if isinstance(request, AskRequest):
        text = read_question(request.question, source.max_characters)
        question = await run_in_threadpool(policy.find_question, text)
        return _Start(question, None, policy.run_episode(question, sampling, request.seed))
    if policy.agent is None:
        raise HTTPError(422, "this policy chooses among candidates with a reward model: its steps cannot be edited")
    before = kept.find(policy.key, request.answer, request.steps)
    stays = state = prefix(before, request.steps)
    settings = replace(policy.limits, sampling=sampling)
    if request.step is not None:
        if request.steps == len(before.steps):
            raise HTTPError(422, f"there is no step {request.steps + 1} in this answer that could be replaced")
        try:
            state = replace_step(policy.agent, before, request.steps, request.step.action(), settings)
        except StepladderError as error:
            raise HTTPError(422, str(error)) from error
    return _Start(before.question, stays, _to_end(policy.agent, state, settings, request.seed))


def _to_end(agent: Agent, state: Trajectory, settings: EpisodeConfig, seed: int) -> Algorithm[Trajectory]:
    """Continue with the passages of the newest query, if it has none yet."""
    if state.steps and not state.steps[-1].passages:
        state = yield from retrieve_passages(state, settings)
    return (yield from run_to_end(agent, state, settings, seed))


def _step_events(policy: AskedPolicy, trajectory: Trajectory, first: int, written: int) -> Iterator[Event]:
    """The steps from a position on. `written`: the number of the step that the user wrote."""
    for number, step in enumerate(trajectory.steps[first:], start=first + 1):
        before = prefix(trajectory, number - 1)
        kinds = kinds_due(policy.agent, before, policy.limits) if policy.agent is not None else ()
        more = {"text": step.written.text, "kinds": sorted(kinds), "written": number == written}
        yield "step", {**step_data(step, number), **more}


def _answer_data(trajectory: Trajectory, end: Finished, seconds: float) -> dict[str, Any]:
    question, stop = trajectory.question, trajectory.stop or StopReason.FAILED
    gold = None
    if question.answers:
        score = score_question(trajectory.answer, question)
        gold = {"answers": list(question.answers), "em": score.em, "f1": score.f1}
    return {
        "text": answer_text(trajectory),
        "answered": trajectory.answer is not None,
        "stop": stop.value,
        "citations": cite(trajectory),
        "usage": {"read": end.usage.read, "written": end.usage.written},
        "seconds": round(seconds, 2),
        "gold": gold,
    }
