"""Does work survive faults? Runs commands under random faults and compares their results with undisturbed ones.

    python checks/faults.py --minutes 30 --seed 0 [--out FOLDER] [--short]

In: how long and which seed. Out: one line per fault and per result, then a table; exit status 1 if a result differs, a
command ends in another way than it should, or an interrupt is lost.

The jobs (`fault_jobs.py`) are a recipe with all stages, index builds, the unpacking of a GGUF file and an adapter. Each
is run once without faults. Then they take turns, and each is started again and again until it completes. Most starts
meet a fault after a random time:

kill        kill -9
interrupt   SIGINT; the process must end within a minute with status 130
full disk   no space is left; the process must name the disk or go on when there is space again
slow disk   every fsync and rename takes up to half a second, so that a kill falls between two of them

A full disk is a tmpfs that is made smaller (`unshare --mount`), or a limit on the size of files where mounting is not
allowed. A scripted server judges pairs and counts its calls: the ledger of a run must count at least as many tokens.
--short leaves out what needs a trained policy.
"""

import argparse
import importlib
import itertools
import json
import os
import pkgutil
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MOUNTED = "STEPLADDER_FAULTS_MOUNTED"
KILL, INTERRUPT, FULL, NONE = "kill", "interrupt", "full disk", "none"
#: Seconds until a fault, on average; for which a disk stays full; and until an interrupt counts as lost.
PAUSE, FULL_SECONDS, LOST_SECONDS = 4.0, 10.0, 60.0
#: Faults of one job, after which it may complete.
MAX_FAULTS = 20
DISK_BYTES = 4 << 30
#: Modules that start devices or other processes.
_NOT_IMPORTED = re.compile(r"\.(paged|vllm|milvus|gym)\b|triton|__main__")


def import_everything() -> None:
    """Import the package, so that processes that are forked from this one start at once."""
    import stepladder

    for module in pkgutil.walk_packages(stepladder.__path__, "stepladder."):
        if not _NOT_IMPORTED.search(module.name):
            with suppress(ImportError):
                importlib.import_module(module.name)
    for name in ("peft", "trl", "faiss", "gguf", "transformers.trainer", "transformers.models.llama.modeling_llama"):
        importlib.import_module(name)


class Disk:
    """The folder in which disturbed jobs work. It can become full."""

    def __init__(self, folder: Path, *, mounted: bool) -> None:
        self.folder, self.mounted = folder, mounted
        folder.mkdir(parents=True, exist_ok=True)
        if mounted:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", folder], check=True)

    def fill(self, process: int, left: int) -> None:
        """Leave so many bytes."""
        if self.mounted:
            now = os.statvfs(self.folder)
            self._resize((now.f_blocks - now.f_bfree) * now.f_bsize + left)
        else:
            with suppress(ProcessLookupError):
                resource.prlimit(process, resource.RLIMIT_FSIZE, (left, resource.RLIM_INFINITY))

    def free(self, process: int) -> None:
        """Give the space back."""
        if self.mounted:
            self._resize(DISK_BYTES)
        else:
            with suppress(ProcessLookupError):
                unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
                resource.prlimit(process, resource.RLIMIT_FSIZE, unlimited)

    def _resize(self, size: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", self.folder], check=True)


def start(arguments: list[str], log: Path, environment: dict[str, str], slow: int | None = None) -> int:
    """Run a command of the CLI in a process forked from this one; its process id. `slow`: the seed of a slow disk."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.update(environment)
        written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(written, 1)
        os.dup2(written, 2)
        if slow is not None:
            slow_down(random.Random(slow))
        from stepladder.cli import main

        status = main(arguments)
    except BaseException:  # noqa: BLE001 - the log tells, and no code of the parent may run here
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def slow_down(rng: random.Random) -> None:
    """Make the calls slow that put a file on disk."""

    def slowed(call: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*arguments: Any, **options: Any) -> Any:
            time.sleep(rng.uniform(0, 0.5) if rng.random() < 0.5 else 0)
            result = call(*arguments, **options)
            time.sleep(rng.uniform(0, 0.5) if rng.random() < 0.5 else 0)
            return result

        return slow

    for name in ("fsync", "replace", "rename", "link"):
        setattr(os, name, slowed(getattr(os, name)))


def wait(process: int, seconds: float | None = None) -> int | None:
    """The exit status of a process, or None if it still runs after so many seconds. Negative: a signal."""
    end = None if seconds is None else time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(process, 0 if end is None else os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if end is not None and time.monotonic() > end:
            return None
        time.sleep(0.01)


class Judge:
    """A scripted model in a process of its own. It bills every call to the key that came with it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        for bill in folder.iterdir():
            bill.unlink()

        class Call(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                text = json.dumps(body["messages"])
                usage = {"prompt_tokens": len(text) // 8, "completion_tokens": 12}
                key = self.headers["Authorization"].removeprefix("Bearer ")
                with (folder / key).open("a", encoding="utf-8") as bill:
                    bill.write(f"{sum(usage.values())}\n")
                time.sleep(0.05)
                reply = json.dumps({"reason": "scripted", "score": int(sha256(text.encode()).hexdigest(), 16) % 101})
                message = {"role": "assistant", "content": reply}
                choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
                answer = json.dumps({"choices": choices, "usage": usage}).encode()
                with suppress(OSError):  # the client was killed
                    self.send_response(200)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)

            def log_message(self, *arguments: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Call)
        self.url = f"http://127.0.0.1:{server.server_port}/v1"
        self.process = os.fork()
        if not self.process:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            server.serve_forever()
        server.server_close()

    def billed(self, key: str) -> int:
        """Tokens of all calls with a key."""
        bill = self.folder / key
        return sum(map(int, bill.read_text(encoding="utf-8").split())) if bill.exists() else 0

    def close(self) -> None:
        """End the server."""
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)


def recorded(folder: Path) -> int:
    """Tokens in the ledger of a run."""
    calls: dict[int, int] = {}
    for path in folder.rglob("spend.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            calls[row["call"]] = row["read"] + row["written"]
    return sum(calls.values())


@dataclass(frozen=True)
class Undisturbed:
    """A job without faults: a digest of every result by path, and its seconds."""

    contents: dict[str, str]
    seconds: float


@dataclass
class Check:
    """One run of this script."""

    out: Path
    rng: random.Random
    disk: Disk
    judge: Judge
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)
    results: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def run(self, arguments: list[str], environment: dict[str, str] | None = None) -> None:
        """Run a command without faults; raise if it fails."""
        log = self.out / "undisturbed.log"
        status = wait(start(arguments, log, environment or {}))
        if status != 0:
            raise SystemExit(f"stepladder {' '.join(arguments)}: status {status}\n{log.read_text(encoding='utf-8')}")

    def disturb(self, job: Any, number: int, undisturbed: "Undisturbed", until: float) -> None:
        """Run a job under faults until it completes, then compare."""
        folder = self.disk.folder / f"{number}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        key = f"key-{number}"
        environment = {**job.environment(folder), "OPENAI_API_KEY": key}
        log = self.out / "disturbed.log"
        for attempt in range(10_000):
            calm = attempt >= MAX_FAULTS or time.monotonic() > until
            fault = NONE if calm else self.rng.choice((KILL, KILL, INTERRUPT, FULL))
            slow = self.rng.randrange(1 << 30) if self.rng.random() < 0.3 else None
            process = start(job.arguments(folder), log, environment, slow)
            delay = None if fault == NONE else self.rng.expovariate(1 / min(PAUSE, undisturbed.seconds / 2))
            status = wait(process, delay)
            if status is None:
                status = self._strike(process, fault)
                self.faults[job.name, fault + (", slow disk" if slow is not None else "")] += 1
            problem = self._judge_end(fault, status, log)
            struck = "completed" if status == 0 else f"{fault} after {delay or 0:.1f} s: status {status}"
            print(f"{number:3} {job.name:12} {struck}{', slow disk' if slow is not None else ''}", flush=True)
            if problem:
                self._tell(job.name, number, problem, log)
            if status == 0:
                break
            if fault == NONE or (problem and attempt > MAX_FAULTS + 3):
                return
        found, expected = contents(folder), undisturbed.contents
        different = sorted(name for name in {**found, **expected} if found.get(name) != expected.get(name))
        self.results[f"{job.name}: {'different' if different else 'equal'}"] += 1
        if different:
            self._tell(job.name, number, f"other results: {', '.join(different[:8])}", log)
            shutil.copytree(folder, self.out / f"different-{number}", dirs_exist_ok=True)
        if recorded(folder) < self.judge.billed(key):
            self._tell(job.name, number, f"the ledger has {recorded(folder)} of {self.judge.billed(key)} tokens", log)
        shutil.rmtree(folder)

    def _strike(self, process: int, fault: str) -> int:
        if fault == KILL:
            os.kill(process, signal.SIGKILL)
        elif fault == INTERRUPT:
            os.kill(process, signal.SIGINT)
            if (status := wait(process, LOST_SECONDS)) is not None:
                return status
            self.problems.append("an interrupt was lost")
            os.kill(process, signal.SIGKILL)
        else:
            self.disk.fill(process, self.rng.choice((0, 4096, 1 << 16, 1 << 20, 1 << 23)))
            status = wait(process, FULL_SECONDS)
            self.disk.free(process)
            if status is not None:
                return status
        status = wait(process)
        assert status is not None
        return status

    def _judge_end(self, fault: str, status: int, log: Path) -> str | None:
        """What is wrong with how a process ended."""
        said = log.read_text(encoding="utf-8", errors="replace")
        expected = {KILL: (0, -signal.SIGKILL), INTERRUPT: (0, 130), FULL: (0, 2), NONE: (0,)}[fault]
        if status not in expected:
            return f"status {status} after {fault}, expected {' or '.join(map(str, expected))}"
        if fault == FULL and status == 2 and not re.search(r"[Nn]o space left|File too large|disk is full", said):
            return "the message does not name the full disk"
        return "a traceback" if "Traceback (most recent call last)" in said else None

    def _tell(self, name: str, number: int, problem: str, log: Path) -> None:
        said = log.read_text(encoding="utf-8", errors="replace")
        self.problems.append(f"{name} ({number}): {problem}")
        print(f"PROBLEM {self.problems[-1]}\n{said[-3000:]}", flush=True)
        (self.out / f"problem-{len(self.problems)}.log").write_text(said, encoding="utf-8")

    def print_table(self) -> None:
        """Faults by job and kind, results, problems."""
        kinds = sorted({kind for _, kind in self.faults})
        print(f"\n{'faults':16}" + "".join(f"{kind:>23}" for kind in kinds))
        for name in sorted({name for name, _ in self.faults}):
            print(f"{name:16}" + "".join(f"{self.faults[name, kind]:23}" for kind in kinds))
        print(f"{sum(self.faults.values())} faults; results: {dict(sorted(self.results.items()))}")
        print(f"{len(self.problems)} problems" + "".join(f"\n  {problem}" for problem in self.problems))


def can_mount() -> bool:
    """Whether a process may have mounts of its own."""
    return not subprocess.run([*_unshare(), "true"], capture_output=True, check=False).returncode


def _unshare() -> list[str]:
    return ["unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",))]


def main() -> int:
    """Run jobs without and with faults, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="time for faults; the undisturbed runs are extra")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/faults"))
    parser.add_argument("--short", action="store_true", help="only what needs no trained policy")
    parser.add_argument("--only", default="", metavar="NAMES", help="jobs with one of these in their names")
    arguments = parser.parse_args()
    if MOUNTED not in os.environ:
        mounted = shutil.which("unshare") is not None and can_mount()
        os.environ.update({MOUNTED: str(int(mounted)), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"})
        os.environ.update({"NO_PROXY": "127.0.0.1", "XDG_CONFIG_HOME": str(arguments.out.absolute() / "config")})
        command = [sys.executable, *sys.argv]
        os.execvp("unshare" if mounted else command[0], [*_unshare(), *command] if mounted else command)
    out = arguments.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    import_everything()
    disk = Disk(out / "disk", mounted=os.environ[MOUNTED] == "1")
    judge = Judge(out / "bills")
    check = Check(out, random.Random(arguments.seed), disk, judge)
    try:
        began = time.monotonic()
        made = make_jobs(out / "inputs", judge.url, check.run, short=arguments.short)
        jobs = [job for job in made if any(each in job.name for each in arguments.only.split(","))]
        undisturbed = {}
        for job in jobs:
            folder, before = disk.folder / "undisturbed", time.monotonic()
            folder.mkdir()
            check.run(job.arguments(folder), {**job.environment(folder), "OPENAI_API_KEY": "undisturbed"})
            result = undisturbed[job.name] = Undisturbed(contents(folder), time.monotonic() - before)
            print(f"{job.name}: {len(result.contents)} files without faults, {result.seconds:.1f} s", flush=True)
            shutil.rmtree(folder)
        until = time.monotonic() + arguments.minutes * 60
        print(
            f"undisturbed: {time.monotonic() - began:.0f} s; disk: {'tmpfs' if disk.mounted else 'limit'}", flush=True
        )
        for number in itertools.count():
            if time.monotonic() > until:
                break
            job = jobs[number % len(jobs)]
            check.disturb(job, number, undisturbed[job.name], until)
    finally:
        judge.close()
    check.print_table()
    return 1 if check.problems else 0


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    from fault_jobs import contents, make_jobs

    sys.exit(main())
