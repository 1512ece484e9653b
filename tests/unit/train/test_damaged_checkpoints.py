"""Checkpoints that lost a file, or a part of one, are not used: training resumes from the one before, and says so."""

import errno
import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepladder.core.errors import StepladderError
from stepladder.core.io import checksums
from stepladder.core.io.checksums import quick_checksum
from stepladder.core.io.files import WriteError
from stepladder.driver import Outcome
from stepladder.train.loop.checkpoints import Checkpoints
from stepladder.train.loop.policy_session import PolicySession
from stepladder.train.loop.training_loop import usable_checkpoints
from tests.support.sft_training import SETTINGS, train

FILES = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")


def remove(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.fixture
def kept(tmp_path: Path) -> Checkpoints:
    """Two checkpoints."""
    checkpoints = Checkpoints(tmp_path)
    for step in (3, 6):
        checkpoints.at(step).mkdir()
        for name in FILES:
            (checkpoints.at(step) / name).write_bytes(name.encode() * (200_000 if name == "optimizer.pt" else step))
        checkpoints.keep(step, also=[3])
    return checkpoints


def test_whole_checkpoints_stay(kept: Checkpoints) -> None:
    kept.at(8).mkdir()  # a kill while it was written
    assert kept.remove_unusable() is None
    assert kept.complete == [3, 6]
    assert not kept.at(8).exists()


def change_a_byte(path: Path) -> None:
    """One that a checksum of a few blocks would miss in a large file."""
    content = bytearray(path.read_bytes())
    content[len(content) * 45 // 100] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [remove, truncate, zero, change_a_byte])
@pytest.mark.parametrize("name", [*FILES, "complete"])
def test_any_damage_is_found(kept: Checkpoints, name: str, damage: Callable[[Path], None]) -> None:
    damage(kept.at(6) / name)
    told = kept.remove_unusable()
    assert kept.complete == [3]
    assert not kept.at(6).exists()
    if name != "complete":  # without it, the checkpoint was never complete
        assert told is not None
        assert told.startswith(f"{kept.at(6)} is damaged: {name} ")


def test_what_came_after_a_damaged_checkpoint_goes_too(kept: Checkpoints) -> None:
    """It may be the best so far, which a resumed run would miss."""
    truncate(kept.at(3) / "optimizer.pt")
    assert "checkpoint-3 is damaged: optimizer.pt has 2,399,999 bytes" in str(kept.remove_unusable())
    assert kept.complete == []


@pytest.mark.parametrize("damaged", [False, True])
def test_what_tells_of_later_updates_goes_with_a_damaged_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damaged: bool
) -> None:
    """A stop that was recorded after it would otherwise end the training that makes it anew."""
    checkpoints, alarms = Checkpoints(tmp_path / "checkpoints"), tmp_path / "alarms.jsonl"
    checkpoints.at(2).mkdir(parents=True)
    (checkpoints.at(2) / "optimizer.pt").write_text("state")
    checkpoints.keep(2)
    alarms.write_text("stopped at 4\n")
    if damaged:
        remove(checkpoints.at(2) / "optimizer.pt")
    compute: Any = SimpleNamespace(processes=SimpleNamespace(main_first=nullcontext))
    assert usable_checkpoints(tmp_path, compute, alarms).complete == ([] if damaged else [2])
    assert alarms.exists() is not damaged
    told = "optimizer.pt is missing. It was removed. Training starts again; the result will be the same"
    assert (told in capsys.readouterr().err) is damaged


def test_checkpoints_of_older_versions_are_used(kept: Checkpoints) -> None:
    """They have checksums of a few blocks."""
    for step in kept.complete:
        folder = kept.at(step)
        listed = {name: [(folder / name).stat().st_size, quick_checksum(folder / name)] for name in FILES}
        (folder / "complete").write_text(json.dumps(listed))
    assert kept.remove_unusable() is None
    zero(kept.at(6) / "optimizer.pt")
    assert "optimizer.pt has other content" in str(kept.remove_unusable())


def test_nothing_is_removed_while_the_disk_cannot_be_read(kept: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(checksums, "_whole_checksum", broken)
        with pytest.raises(StepladderError, match="checkpoint-3 cannot be read: Input/output error"):
            kept.remove_unusable()
    assert kept.complete == [3, 6]


class Stop(Exception):
    """Ends a run."""


def test_a_resumed_run_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def evaluator(session: PolicySession, *_: Any) -> Callable[[], dict[str, float]]:
        """The first checkpoint is the best, so that it is kept beside the newest."""
        return lambda: {"f1": 0.1 if any(session.context.folder.glob("checkpoints/checkpoint-*")) else 0.5}

    def watch(outcome: Outcome[Any]) -> None:
        if outcome.index + 1 == 5 and isinstance(outcome.value, float):
            raise Stop

    monkeypatch.setattr(PolicySession, "dev_evaluator", evaluator)
    settings = SETTINGS.model_copy(update={"eval_steps": 2})
    whole = train(tmp_path / "whole", settings)
    with pytest.raises(Stop):
        train(tmp_path / "cut", settings, watch=watch)
    checkpoints = Checkpoints(tmp_path / "cut" / "checkpoints")
    assert checkpoints.complete == [2, 4]
    remove(checkpoints.at(4) / "optimizer.pt")
    steps: list[int] = []
    resumed = train(tmp_path / "cut", settings, watch=lambda outcome: steps.append(outcome.index + 1))
    told = "checkpoint-4 is damaged: optimizer.pt is missing. It was removed. Training resumes from update 2"
    assert told in capsys.readouterr().err
    assert steps == [3, 4, 5, 6]
    for folder in ("policy", "checkpoints/checkpoint-6"):
        one, other = (each / folder / "model.safetensors" for each in (whole.policy.parent, resumed.policy.parent))
        assert one.read_bytes() == other.read_bytes()


@pytest.fixture
def small_files() -> Iterator[Callable[[int], None]]:
    """Sets the most bytes of a file, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("written", ["model.safetensors", "optimizer.pt"])
def test_a_full_disk_is_named_and_leaves_nothing(
    tmp_path: Path, small_files: Callable[[int], None], written: str
) -> None:
    def watch(outcome: Outcome[Any]) -> None:
        if outcome.index + 1 == 4 and isinstance(outcome.value, float):
            size = (tmp_path / "checkpoints" / "checkpoint-3" / "model.safetensors").stat().st_size
            small_files(size - 1 if written == "model.safetensors" else size + 1000)

    with pytest.raises(WriteError) as caught:
        train(tmp_path, SETTINGS.model_copy(update={"dev_questions": 0}), watch=watch)
    message = str(caught.value)
    assert message.startswith(f"could not write the checkpoint {tmp_path / 'checkpoints' / 'checkpoint-6'}: the disk ")
    assert "MB are free on that disk. The same command resumes from the one before." in message
    assert "\n" not in message
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["checkpoint-3"]
