"""Which policy, index and reward model a request names, as settings. Opens nothing.

In: what a user has typed, and the runs of the studio. Out: `PolicySettings`, or a `StepladderError` that says what to
type. Files of agents are refused: nothing that a request names is executed. A studio that everybody can reach
(`--insecure`) only plays the policies of its own runs, because a path or a URL of a stranger could read files and get
this user's keys.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from stepladder.agents import is_agent_file
from stepladder.core.errors import StepladderError
from stepladder.core.io.files import expand_path
from stepladder.core.io.masking import hide
from stepladder.data import is_dataset_name
from stepladder.models import builtin_folder
from stepladder.pipeline.agent_config import agent_config
from stepladder.pipeline.policy_choice import choose_policy
from stepladder.pipeline.recipe import with_value
from stepladder.pipeline.resources import ORACLE, SharedConfig
from stepladder.pipeline.run_folder import RunFolder, is_run
from stepladder.pipeline.stage import REWARD
from stepladder.serve.http.http_errors import HTTPError
from stepladder.serve.studio.playground.playground_requests import PolicyRequest
from stepladder.serve.studio.run_library import RunLibrary

#: Typed in place of a reward model: steps get no scores.
NO_REWARD = "none"
#: Repeated calls of a policy's server that does not answer: somebody waits.
_RETRIES = 1


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """A policy that can be opened."""

    config: SharedConfig
    #: `oracle`, `openai` or None: the engine of the settings.
    engine: str | None
    model: str | None
    #: The folder of the reward model, and its name for the page.
    reward: str | None
    reward_label: str
    label: str
    #: Of a run: which policy it is, and why.
    reason: str
    #: Whether questions are looked up in the data of the settings. Those to an index of the user's own are not.
    uses_data: bool

    @property
    def key(self) -> str:
        """Equal for equal policies, as long as the files of model and reward model stay the same."""
        files = [_stamp(path) for path in (self.model, self.reward)]
        plain = self.config.model_dump(mode="json")
        return json.dumps([plain, self.engine, self.model, self.reward, files], sort_keys=True)


def policy_settings(request: PolicyRequest, runs: RunLibrary | None, *, trusted: bool) -> PolicySettings:
    """The settings of a request. `trusted`: whether it may name paths and servers."""
    policy = hide(request.policy.strip())
    if not policy:
        raise StepladderError("no policy given: choose a run, or type a model, a server's URL or 'oracle'")
    if not trusted:
        _check_untrusted(request, runs)
    if is_agent_file(request.agent):
        raise StepladderError(
            f"agent files are not executed here: `stepladder serve-agent --agent {request.agent}` serves one"
        )
    run = _run(policy, runs)
    searched = _run(request.index.strip(), runs)
    given: dict[str, object] = {"agent": request.agent.strip() or None}
    is_server = policy.startswith(("http://", "https://"))
    if is_server:
        if not request.model.strip():
            raise StepladderError(f"{policy} is a server: give the name of its model too")
        given |= {"engine": "openai", "base_url": policy}
    if request.stage.strip() and run is None:
        raise StepladderError(f"a stage belongs to a run, and {policy} is none: leave the stage empty")
    model = request.model.strip() if is_server else None if run is not None or policy == ORACLE else policy
    config = agent_config(run or searched, model, given)
    config, uses_data = _searching(config, request.index.strip(), searched)
    if config.ray is not None or is_server:
        plain = with_value(config.model_dump(mode="json"), ["ray"], None)
        config = SharedConfig.read(with_value(plain, ["server", "retries"], _RETRIES) if is_server else plain)
    reward = _reward(request.reward.strip(), run, policy, runs)
    if run is not None:
        choice = choose_policy(run, request.stage.strip() or None)
        label = f"{policy} · {choice.stage}"
        return PolicySettings(config, None, str(choice.path), *reward, label, choice.reason, uses_data)
    if policy == ORACLE:
        return PolicySettings(config, ORACLE, None, *reward, "oracle", "", uses_data=True)
    if is_server:
        return PolicySettings(config, "openai", model, *reward, f"{model} at {policy}", "", uses_data)
    return PolicySettings(config, None, model, *reward, policy, "", uses_data)


def _run(name: str, runs: RunLibrary | None) -> RunFolder | None:
    """The run of this name in the studio, or in this folder; None if it is none."""
    if not name or "://" in name:
        return None
    if runs is not None:
        try:
            return RunFolder.open(runs.folder(name))
        except HTTPError:
            pass  # it may be a path
    path = expand_path(name)
    return RunFolder.open(path) if is_run(path) else None


def _searching(config: SharedConfig, index: str, searched: RunFolder | None) -> tuple[SharedConfig, bool]:
    """The settings with this index, and whether questions are looked up in their data."""
    if not index:
        return config, True
    plain: object = config.model_dump(mode="json")
    if searched is not None:
        shared = searched.recipe().shared
        plain = with_value(plain, ["data"], shared.data.model_dump(mode="json"))
        return SharedConfig.read(with_value(plain, ["search"], shared.search.model_dump(mode="json"))), True
    if is_dataset_name(index):
        return SharedConfig.read(with_value(plain, ["data"], {"name": index})), True
    return SharedConfig.read(with_value(plain, ["data", "index"], index)), False


def _reward(typed: str, run: RunFolder | None, policy: str, runs: RunLibrary | None) -> tuple[str | None, str]:
    """The folder of a reward model and its name for the page: as typed, or the newest of the run."""
    if typed == NO_REWARD:
        return None, ""
    source = _run(typed, runs) if typed else run
    if source is not None:
        rewards = source.outputs(REWARD)
        if not rewards and typed:
            raise StepladderError(f"the run {typed} has no reward model yet")
        stage, folder = next(reversed(rewards.items()), ("", None))
        return (None, "") if folder is None else (str(folder), f"{typed or policy} · {stage}")
    if not typed:
        return None, ""
    path = builtin_folder(typed) or expand_path(typed)
    if not (path / "config.json").is_file():
        raise StepladderError(f"{typed} is no reward model: expected its folder, a run with one, or '{NO_REWARD}'")
    return str(path), typed


def _check_untrusted(request: PolicyRequest, runs: RunLibrary | None) -> None:
    known = [*(runs.names() if runs is not None else ()), ORACLE]
    for field, value, allowed in (
        ("policy", request.policy.strip(), known),
        ("index", request.index.strip(), ["", *known[:-1]]),
        ("reward model", request.reward.strip(), ["", NO_REWARD, *known[:-1]]),
    ):
        if value not in allowed:
            raise HTTPError(
                403,
                f"{field}: this studio is open to everybody (--insecure), so only its own runs can be named: "
                f"{', '.join(known)}. With a token, models, servers and indexes can be named too",
            )


def _stamp(path: str | None) -> int:
    """When the files of a model were written; 0 if it is not in a folder."""
    file = Path(path or "") / "config.json"
    return file.stat().st_mtime_ns if path and file.is_file() else 0
