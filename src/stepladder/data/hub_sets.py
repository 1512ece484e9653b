"""Fetch published question sets from the Hugging Face hub.

In: the name of a set and a folder. Out: the folder with its files and `source.json`: repository, commit, and size and
etag of each file. The folder appears when all files are complete and checked. What arrives before that is kept in a
hidden folder beside it, and the next call resumes there, in the middle of a file too.

`HF_ENDPOINT` names another server with the hub's addresses. The sets need no token, and none is sent.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import file_digest, sha1
from pathlib import Path

from stepladder.core.errors import StepladderError, unknown_name
from stepladder.core.io.files import resumable_folder
from stepladder.core.memory import format_bytes

#: The collection that has most sets, all in one format.
FLASHRAG = "RUC-NLPIR/FlashRAG_datasets"
_SOURCE = "source.json"
#: Is told the name of a file, the bytes that have arrived, and its size.
Watch = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class HubSet:
    """A question set on the hub."""

    repo: str
    #: The paths of its files in the repository. They keep their names.
    paths: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its files."""
        return tuple(path.rpartition("/")[2] for path in self.paths)

    def urls(self) -> tuple[str, ...]:
        """The addresses of its files."""
        return tuple(f"{endpoint()}/datasets/{self.repo}/resolve/main/{path}" for path in self.paths)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """What the server says about a file."""

    url: str
    name: str
    size: int
    etag: str
    commit: str


def _flashrag(name: str, *splits: str) -> HubSet:
    return HubSet(FLASHRAG, tuple(f"{name}/{split}.jsonl" for split in splits))


#: The sets by the name that `--data` takes.
HUB_SETS: dict[str, HubSet] = {
    "hotpotqa": _flashrag("hotpotqa", "train", "dev"),
    "2wikimultihopqa": _flashrag("2wikimultihopqa", "train", "dev"),
    "musique": _flashrag("musique", "train", "dev"),
    "bamboogle": _flashrag("bamboogle", "test"),
    "popqa": _flashrag("popqa", "test"),
    "nq": _flashrag("nq", "train", "dev", "test"),
    "triviaqa": _flashrag("triviaqa", "train", "dev", "test"),
    "medqa": HubSet(
        "GBaker/MedQA-USMLE-4-options", ("phrases_no_exclude_train.jsonl", "phrases_no_exclude_test.jsonl")
    ),
}


def endpoint() -> str:
    """The address of the hub."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"


def fetch_set(name: str, folder: Path, watch: Watch = lambda *_: None) -> bool:
    """Download a set into a new folder; false if it is already there."""
    if name not in HUB_SETS:
        raise unknown_name("published set", name, HUB_SETS)
    hub_set = HUB_SETS[name]
    if folder.exists():
        lacking = [each for each in hub_set.names if not (folder / each).is_file()]
        if not lacking:
            return False
        raise StepladderError(
            f"{folder} exists and has no {' and no '.join(lacking)}: move it away, or choose another folder with --to"
        )
    with _network_errors(hub_set, folder):
        files = [_remote_file(url, each) for url, each in zip(hub_set.urls(), hub_set.names)]
    plan = {"repo": hub_set.repo, "files": {each.name: [each.size, each.etag] for each in files}}
    with resumable_folder(folder, plan, "question set") as partial:
        for file in files:
            if not (partial.folder / file.name).is_file():
                arrived = partial.scratch / file.name
                with _broken_downloads(file, arrived):
                    _download(file, arrived, watch)
                arrived.rename(partial.folder / file.name)
        (partial.folder / _SOURCE).write_text(json.dumps(_source(hub_set, files), indent=2) + "\n", encoding="utf-8")
    return True


def by_hand(hub_set: HubSet, folder: Path) -> str:
    """How to get a set without a network."""
    return f"download {' and '.join(hub_set.urls())} on a machine with a network, and put the files into {folder}"


def _source(hub_set: HubSet, files: list[RemoteFile]) -> Mapping[str, object]:
    known = {each.name: {"size": each.size, "etag": each.etag} for each in files}
    return {"repo": hub_set.repo, "commit": files[0].commit, "files": known}


def _remote_file(url: str, name: str) -> RemoteFile:
    from huggingface_hub import get_hf_file_metadata  # takes a while to import

    found = get_hf_file_metadata(url, token=False)
    if found.size is None or not found.etag:
        raise StepladderError(f"{url}: the server does not say how large the file is, or which version")
    return RemoteFile(url, name, found.size, found.etag, found.commit_hash or "")


def _download(file: RemoteFile, path: Path, watch: Watch) -> None:
    """Download what is missing of a file, and check the whole of it. Repeats attempts while they bring anything."""
    import httpx2

    size = path.stat().st_size if path.is_file() else 0
    while size < file.size:
        try:
            _append(file, path, size, watch)
        except httpx2.TransportError:
            if path.stat().st_size <= size:
                raise
        size = path.stat().st_size
    if size > file.size or not _has_content(path, file.etag):
        path.unlink()
        raise StepladderError(
            f"{file.url}: the downloaded file is damaged: its hash is not {file.etag}. It was deleted; run the same "
            "command again"
        )


def _append(file: RemoteFile, path: Path, start: int, watch: Watch) -> None:
    """Append the rest of a file from a byte on; the whole file if the server sends nothing less."""
    import httpx2
    from huggingface_hub import get_session

    headers = {"Range": f"bytes={start}-", "Accept-Encoding": "identity"}
    with path.open("ab") as out, get_session().stream("GET", file.url, headers=headers) as reply:
        reply.raise_for_status()
        if start and reply.status_code != 206:
            out.seek(out.truncate(0))  # else tell() counts what was cut
        for chunk in reply.iter_raw():
            out.write(chunk)
            watch(file.name, out.tell(), file.size)
            if out.tell() > file.size:  # not this file
                break
        if out.tell() <= start:
            raise httpx2.RemoteProtocolError("the server sent nothing")


def _has_content(path: Path, etag: str) -> bool:
    """Whether a file has the content of an etag: a SHA-256, or the SHA-1 of a Git object. Others cannot be checked."""
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", etag):
        return True
    with path.open("rb") as content:
        if len(etag) == 64:
            return file_digest(content, "sha256").hexdigest() == etag
        head = sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
        return file_digest(content, lambda: head).hexdigest() == etag


@contextmanager
def _network_errors(hub_set: HubSet, folder: Path) -> Iterator[None]:
    """Raise what a missing network or a missing file does as an error that says how to get the set."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        yield
    except HfHubHTTPError as error:
        raise StepladderError(
            f"{endpoint()} answered {error.response.status_code} for a file of {hub_set.repo}: look for it at "
            f"{endpoint()}/datasets/{hub_set.repo}, or try again later"
        ) from error
    except (httpx2.HTTPError, OfflineModeIsEnabled, OSError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise StepladderError(
            f"{endpoint()} cannot be reached ({reason}). Without a network: {by_hand(hub_set, folder)}. HF_ENDPOINT "
            "names another server"
        ) from error


@contextmanager
def _broken_downloads(file: RemoteFile, arrived: Path) -> Iterator[None]:
    """Raise a download that breaks off as an error that says what is kept."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        yield
    except (httpx2.HTTPError, HfHubHTTPError, OfflineModeIsEnabled, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk
            raise
        size = arrived.stat().st_size if arrived.is_file() else 0
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise StepladderError(
            f"{file.url}: the download broke off after {format_bytes(size)} of {format_bytes(file.size)} ({reason}). "
            "What has arrived is kept: run the same command again to continue"
        ) from error
