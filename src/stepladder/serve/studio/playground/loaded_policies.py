"""Policies that are loaded when they are asked for, and dropped when others are.

In: requests that name a policy. Out: the policy with its scheduler, loaded once for all requests that name it. At most
`max_policies` are loaded; the one that was not asked for longest is dropped for another. One is loaded at a time.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from stepladder.agents import AGENTS
from stepladder.core.errors import StepladderError
from stepladder.core.io.masking import mask
from stepladder.core.trace import Question
from stepladder.data import DATA_SETS, DataSet
from stepladder.data.data_config import DataConfig
from stepladder.driver import Driver
from stepladder.explore.episode import episode
from stepladder.models import NAMED
from stepladder.pipeline.resources import ORACLE, RunContext
from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.stage import POLICY
from stepladder.pipeline.workers.rollout_workers import Scoring, open_driver
from stepladder.serve.agent.scheduler import AgentMetrics, Scheduler
from stepladder.serve.http.http_errors import HTTPError
from stepladder.serve.server_configs import StudioConfig
from stepladder.serve.studio.playground.asked_policy import AskedPolicy
from stepladder.serve.studio.playground.playground_requests import PolicyRequest
from stepladder.serve.studio.playground.policy_settings import PolicySettings, policy_settings
from stepladder.serve.studio.run_library import RunLibrary

log = logging.getLogger(__name__)

#: Questions that one policy answers at once, and that wait for it.
_IN_FLIGHT, _WAITING = 8, 16


@dataclass(frozen=True, slots=True)
class _Opened:
    """What a policy holds."""

    stack: ExitStack
    driver: Driver
    context: RunContext


@dataclass(slots=True, eq=False)
class _Entry:
    """A policy that is loaded, or is being loaded."""

    label: str
    loading: "asyncio.Future[AskedPolicy]"
    #: Requests that wait for it or use it.
    users: int = 0
    task: "asyncio.Task[None] | None" = None
    stack: ExitStack | None = None


class LoadedPolicies:
    """The policies of a studio, by what requests name."""

    names_policies = True

    def __init__(self, runs: RunLibrary | None, config: StudioConfig, *, trusted: bool) -> None:
        """`trusted`: whether requests may name paths and servers."""
        self.max_characters, self.answer_seconds = config.max_characters, config.answer_seconds
        self._runs, self._most, self._trusted = runs, config.max_policies, trusted
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="policies")
        #: The data that was opened last, with its settings.
        self._data: tuple[str, DataSet] | None = None

    def choices(self) -> dict[str, Any]:
        """What the page offers. Runs that cannot be read are left out."""
        found = []
        for name in self._runs.names() if self._runs is not None else ():
            try:
                stages = list(RunFolder.open(self._runs.folder(name)).outputs(POLICY)) if self._runs else []
            except (StepladderError, HTTPError, OSError):
                continue
            if stages:
                found.append({"name": name, "stages": stages})
        return {
            "runs": found,
            "models": [*NAMED] if self._trusted else [],
            "agents": {name: AGENTS.description(name) for name in AGENTS},
            "data": [*DATA_SETS],
            "trusted": self._trusted,
            "loaded": [entry.label for entry in self._entries.values()],
        }

    async def acquire(self, request: PolicyRequest) -> AskedPolicy:
        """The policy, loaded if it is not."""
        loop = asyncio.get_running_loop()
        try:
            settings = await loop.run_in_executor(None, self._settings, request)
            key = await loop.run_in_executor(None, lambda: settings.key)
        except StepladderError as error:
            raise HTTPError(422, str(error)) from error
        entry = self._entries.get(key)
        if entry is None:
            await self._make_room()
            entry = self._entries.setdefault(key, _Entry(settings.label, loop.create_future()))
            if entry.users == 0 and not entry.loading.done():
                entry.users = 1
                entry.task = asyncio.ensure_future(self._load(key, entry, settings))
                return await self._used(entry)
        entry.users += 1
        return await self._used(entry)

    def release(self, policy: AskedPolicy) -> None:
        """The policy has answered."""
        entry = self._entries.get(str(policy.key))
        if entry is not None:
            entry.users -= 1
            self._entries.move_to_end(str(policy.key))

    def examples(self, request: PolicyRequest) -> Sequence[Question]:
        """Questions with an answer, of the test split if there is one."""
        settings = self._settings(request)
        if not settings.uses_data:
            raise HTTPError(422, "an index of your own has no example questions: type one")
        data = self._open_data(RunContext(settings.config, _silent()))
        split = next((name for name in ("test", "dev") if name in data.questions), next(iter(data.questions)))
        return [question for question in data.split(split) if question.answers]

    async def close(self) -> None:
        """Drop all policies."""
        for key in list(self._entries):
            await self._drop(key)
        self._loader.shutdown(wait=False, cancel_futures=True)

    def _settings(self, request: PolicyRequest) -> PolicySettings:
        return policy_settings(request, self._runs, trusted=self._trusted)

    async def _used(self, entry: _Entry) -> AskedPolicy:
        try:
            return await asyncio.shield(entry.loading)
        except BaseException:
            entry.users -= 1
            raise

    async def _make_room(self) -> None:
        """Drop the policies that were not asked for longest until another may be loaded."""
        while len(self._entries) >= self._most:
            idle = next((key for key, entry in self._entries.items() if entry.users == 0), None)
            if idle is None:
                names = " and ".join(entry.label for entry in self._entries.values())
                raise HTTPError(
                    503,
                    f"{names} are in use, and at most {self._most} policies are loaded at once: wait until they have "
                    f"answered, or start the studio with --max-policies {self._most + 1}",
                )
            await self._drop(idle)

    async def _load(self, key: str, entry: _Entry, settings: PolicySettings) -> None:
        loop = asyncio.get_running_loop()
        try:
            opened = await loop.run_in_executor(self._loader, partial(_open, settings))
        except BaseException as error:
            self._entries.pop(key, None)
            if not isinstance(error, StepladderError):
                log.exception("the policy %s could not be loaded", settings.label)
            problem = str(error) if isinstance(error, StepladderError) else f"{type(error).__name__}: {error}"
            entry.loading.set_exception(HTTPError(422, f"{settings.label} could not be loaded: {mask(problem)}"))
            if not isinstance(error, Exception):
                raise
            return
        driver, agent = opened.driver, opened.context.agent
        live = Scheduler(driver, max_waiting=_WAITING, metrics=AgentMetrics(), tells_reasons=True)
        live.start()
        entry.stack = opened.stack
        opened.stack.callback(live.close)
        limits = opened.context.episode()
        entry.loading.set_result(
            AskedPolicy(
                key,
                live,
                lambda question, sampling, seed: episode(
                    agent, question, type(limits)(limits.max_steps, limits.k, sampling), seed
                ),
                limits.sampling,
                agent,
                limits,
                scores=driver.scorer is not None,
                find_question=partial(self._find_question, settings, opened.context),
                about=_about(settings, opened.context),
            )
        )

    async def _drop(self, key: str) -> None:
        entry = self._entries.pop(key)
        if entry.stack is not None:
            await asyncio.get_running_loop().run_in_executor(None, entry.stack.close)

    def _open_data(self, context: RunContext) -> DataSet:
        settings = context.settings.data.model_dump_json()
        if self._data is None or self._data[0] != settings:
            self._data = settings, context.data
        return self._data[1]

    def _find_question(self, settings: PolicySettings, context: RunContext, text: str) -> Question:
        """The question of the data with this text, or a new one."""
        if settings.uses_data:
            data = self._open_data(context)
            for question in (each for split in data.questions.values() for each in split):
                if question.text.strip() == text:
                    return question
            if settings.engine == ORACLE:
                raise HTTPError(
                    422,
                    f"the oracle can only answer questions of {data.name}, and this is not one of them: take an "
                    "example question, or ask a model",
                )
        return Question("asked", text, ())


def _open(settings: PolicySettings) -> _Opened:
    """Open the engine, the index and the reward model."""
    is_oracle, is_server = settings.engine == ORACLE, settings.engine == "openai"
    context = RunContext(
        settings.config, _silent(), prompted=False if is_oracle else True if is_server else None, remote=is_server
    )
    scoring = Scoring("prm", settings.reward) if settings.reward is not None else None
    with ExitStack() as stack:
        stack.enter_context(closing(context))
        driver = stack.enter_context(
            open_driver(context, settings.model, settings.engine, scoring=scoring, in_flight=_IN_FLIGHT)
        )
        return _Opened(stack.pop_all(), driver, context)


def _about(settings: PolicySettings, context: RunContext) -> dict[str, Any]:
    """What the page says about a policy."""
    shared = context.settings
    return {
        "label": settings.label,
        "reason": settings.reason,
        "agent": shared.agent,
        "index": _index_name(shared.data) if context.agent.searches else None,
        "reward": settings.reward_label,
        "format": str(asdict(context.agent.play)["format"]),
        "oracle": settings.engine == ORACLE,
    }


def _index_name(data: DataConfig) -> str:
    """The index as the user would type it: below the folder where the server was started, without the path to there."""
    if data.index is None:
        return data.name or "question files"
    return "+".join(part.removeprefix(f"{Path.cwd()}/") for part in data.index.split("+"))


def _silent() -> Console:
    return Console(file=StringIO())
