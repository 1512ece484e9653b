"""Search servers as processes of their own: the command that starts one, signals, and a server that ends under load."""

import re
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx2
import pytest

from stepladder.retrieval.index.bm25 import BM25Index
from stepladder.retrieval.remote.client import RemoteRetriever
from tests.support.samples import PASSAGES
from tests.support.search_servers import TOWER, child, running

SLOW_SERVER = """
import sys, time
from stepladder.retrieval.base import Retriever
from stepladder.retrieval.index.build import build_index
from stepladder.serve.search.search_server import serve
from stepladder.serve.server_configs import ServerConfig
from stepladder.core.trace import Passage

class Slow(Retriever):
    def search(self, queries, k):
        print("searching", flush=True)
        time.sleep(1.0)
        return [(Passage("p", "t", query, 1.0),) for query in queries]

serve(Slow(), ServerConfig(), {}, port=0, announce=lambda url: print(url, flush=True))
print("closed", flush=True)
"""
COMMAND = "import typer; from stepladder.cli.serve import serve_command; typer.run(serve_command)"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_server_end_well(number: int) -> None:
    with child(SLOW_SERVER) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with ThreadPoolExecutor(1) as pool:
            reply = pool.submit(httpx2.post, f"{url}/retrieve", json={"queries": ["last"]}, timeout=20)
            assert process.stdout.readline() == "searching\n"
            process.send_signal(number)
            assert reply.result().json() == {"result": [[{"id": "p", "contents": '"t"\nlast'}]]}
        assert process.stdout.read() == "closed\n"
        assert process.wait(20) == 0
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) != 0


def test_the_command_serves_a_data_set_until_it_is_asked_to_end() -> None:
    arguments = ("atlas", "--port", "0", "--topk", "2", "--cache-entries", "0")
    with child(COMMAND, *arguments, STEPLADDER_TOKEN="open-sesame") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        told = re.fullmatch(
            r"(http://127\.0\.0\.1:\d+) serves atlas, ([\d,]+) passages \(press Ctrl-C to stop\)\n", line
        )
        assert told, line
        headers = {"authorization": "Bearer open-sesame"}
        with httpx2.Client(base_url=told[1], headers=headers, trust_env=False) as client:
            info = client.get("/info").json()
            assert info["index"]["passages"] == int(told[2].replace(",", ""))
            assert info["limits"]["cache_entries"] == 0
            assert len(client.post("/retrieve", json={"queries": ["the river"]}).json()["result"][0]) == 2
        process.terminate()
        assert process.wait(20) == 0
        assert process.stdout.read() == ""


OTHER_SERVER = """
from stepladder.retrieval.index.bm25 import BM25Index
from stepladder.serve.search.search_server import serve
from stepladder.serve.server_configs import ServerConfig
from tests.support.samples import PASSAGES

serve(BM25Index.from_passages(PASSAGES), ServerConfig(), {}, port=0, announce=lambda url: print(url, flush=True))
"""


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_ends_under_load_costs_no_search(end: int) -> None:
    index = BM25Index.from_passages(PASSAGES)
    expected = [passage.id for passage in index.search([TOWER], 2)[0]]
    done = threading.Semaphore(0)
    with child(OTHER_SERVER) as other, running(index) as server:
        assert other.stdout is not None
        urls = [other.stdout.readline(), server.url]
        with closing(RemoteRetriever(urls, backoff=0.01)) as retriever, ThreadPoolExecutor(8) as pool:

            def search(number: int) -> list[str]:
                (result,) = retriever.search([f"{TOWER} {number}"], 2)
                done.release()
                return [passage.id for passage in result]

            results = [pool.submit(search, number) for number in range(400)]
            for _ in range(100):
                done.acquire()
            other.send_signal(end)
            assert all(result.result() == expected for result in results)
            assert server.metric("stepladder_queries_total") < 400, "the other took its share before"
            assert retriever.retries > 0, "it ended while searches were under way"
        assert other.wait(20) == (-end if end == signal.SIGKILL else 0)
