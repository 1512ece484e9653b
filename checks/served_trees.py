"""Trees grown by a model behind a server, then DPO on the local model: `reasonrag-nano` over HTTP.

    python checks/served_trees.py --out runs/served-trees                     # about ten minutes on two cores
    python checks/served_trees.py --out runs/served-trees --questions 24      # quicker, with few pairs

In: the recipe `reasonrag-nano`. Out: the preference pairs that DPO used, EM and F1 before and after it; exit status 1
if there were no pairs. The model after the warm-up is served at a URL as any other program would serve it: text in,
text out, no token ids. `explore` reaches it by this URL; `dpo` encodes what it wrote (`reencode: true`). The same
command resumes an interrupted run.
"""

import argparse
import json
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from stepladder.core.requests import Finish, Generate, Generation, Sampling
from stepladder.core.trace import Author, Segment
from stepladder.engines.base import Engine
from stepladder.engines.transformers.engine import TransformersEngine
from stepladder.pipeline.recipe import Recipe, load_recipe
from stepladder.pipeline.runner import run_recipe


def main() -> None:
    """Warm up, serve, explore, train, and print the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=64, help="questions with a tree")
    parser.add_argument("--limit", type=int, default=100, help="questions of an evaluation")
    parser.add_argument("--port", type=int, default=8017)
    options = parser.parse_args()
    base = load_recipe("reasonrag-nano").plain()
    stages = base.pop("stages")
    for name in ("eval-sft", "eval-dpo"):
        stages[name]["limit"] = options.limit

    warm_up = {**base, "name": "warm-up", "stages": {name: stages[name] for name in ("sft", "eval-sft")}}
    before = run_recipe(Recipe.read(warm_up), options.out / "warm-up").stages[-1].summary
    policy = options.out / "warm-up" / "sft" / "policy"

    with closing(TransformersEngine(str(policy))) as engine, served(engine, options.port) as (url, calls):
        later = {
            "explore": {**stages["explore"], "policy": "server", "questions": options.questions},
            "pairs": stages["pairs"],
            "dpo": {**stages["dpo"], "policy": "base", "reencode": True, "dev_questions": 0},
            "eval-dpo": stages["eval-dpo"],
        }
        server = {"model": "warm-up", "base_url": url, "api": "completions"}
        recipe = {**base, "name": "served-trees", "policy": str(policy), "server": server, "stages": later}
        report = run_recipe(Recipe.read(recipe), options.out / "trained", update=True)
    summaries = {stage.name: stage.summary for stage in report.stages}
    made, used = summaries["pairs"]["pairs"], summaries["dpo"]["pairs"]
    print(f"calls to the server: {calls[0]:,}. Preference pairs: {made}, used by DPO: {used}")
    for name, summary in (("after SFT", before), ("after DPO on the server's trees", summaries["eval-dpo"])):
        em, f1 = summary["em"], summary["f1"]
        print(f"{name}: EM {em['mean']:.3f}, F1 {f1['mean']:.3f} [{f1['low']:.3f}, {f1['high']:.3f}]")
    sys.exit(0 if used else 1)


@contextmanager
def served(engine: Engine, port: int) -> Iterator[tuple[str, list[int]]]:
    """Serve a model at a URL, with OpenAI's completions API. Yields the URL and the number of calls.

    Calls that wait are generated together.
    """
    waiting: SimpleQueue[tuple[list[Generate], Future[Any]]] = SimpleQueue()
    calls = [0]

    def work() -> None:
        while True:
            batch = [waiting.get()]
            while not waiting.empty():
                batch.append(waiting.get())
            replies = iter(engine.generate([request for requests, _ in batch for request in requests]))
            for requests, future in batch:
                future.set_result([next(replies) for _ in requests])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            calls[0] += 1
            future: Future[Any] = Future()
            waiting.put((list(requests_of(body)), future))
            payload = json.dumps(completion(future.result())).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    for task in (server.serve_forever, work):
        threading.Thread(target=task, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", calls
    finally:
        server.shutdown()
        server.server_close()


def requests_of(body: dict[str, Any]) -> Iterator[Generate]:
    """The samples that a call asks for."""
    sampling = Sampling(body["temperature"], body["top_p"], body["max_tokens"])
    for number in range(body.get("n", 1)):
        prompt = (Segment(Author.PROMPT, body["prompt"]),)
        yield Generate(prompt, tuple(body.get("stop", ())), sampling, body["seed"] + number)


def completion(replies: list[Any]) -> dict[str, Any]:
    """The response of a server: texts, no token ids."""
    done: list[Generation] = [reply for reply in replies if isinstance(reply, Generation)]
    names = {Finish.LENGTH: "length"}
    choices = [{"text": reply.text, "finish_reason": names.get(reply.finish, "stop")} for reply in done]
    read, written = (sum(getattr(reply.usage, name) for reply in done) for name in ("read", "written"))
    return {"choices": choices, "usage": {"prompt_tokens": read, "completion_tokens": written}}


if __name__ == "__main__":
    main()
