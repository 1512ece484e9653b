"""Agent servers as processes of their own: for OpenAI clients over HTTP, and for MCP clients over stdio."""

import json
import os
import re
import subprocess
import sys
from typing import Any

import httpx2
import openai

from tests.support import ROOT
from tests.support.agent_servers import COMMAND, Oracle, running
from tests.support.search_servers import child


def test_the_command_serves_a_model_until_it_is_asked_to_end() -> None:
    """The model that it asks is behind another server of the same kind."""
    with running(Oracle()) as served:
        arguments = ("--agent", "direct", "--model", "stepladder", "--base-url", f"{served.url}/v1")
        token = {"STEPLADDER_TOKEN": "open-sesame", "OPENAI_API_KEY": "none"}
        with child(COMMAND, *arguments, "--port", "0", "--name", "outer", **token) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            told = re.fullmatch(
                r"(http://127\.0\.0\.1:\d+/v1) serves outer to OpenAI clients, and a page to ask it at / "
                r"\(press Ctrl-C to stop\)\n",
                line,
            )
            assert told, line
            client = openai.OpenAI(base_url=told[1], api_key="open-sesame", max_retries=0)
            answer = client.chat.completions.create(
                model="outer", messages=[{"role": "user", "content": "Who?"}], max_tokens=400
            )
            assert answer.choices[0].message.content == "Velm"
            trace: Any = answer.choices[0].message.model_extra["stepladder"]  # type: ignore[index]
            assert (trace["steps"][0]["action"], trace["steps"][0]["content"]) == ("answer", "Velm"), (
                "an answer without tags"
            )
            assert answer.usage is not None
            assert answer.usage.completion_tokens > 0
            headers = {"authorization": "Bearer open-sesame"}
            info = httpx2.get(told[1].removesuffix("/v1") + "/info", headers=headers, trust_env=False).json()
            assert (info["agent"], info["policy"], info["index"]) == ("direct", "stepladder", None)
            process.terminate()
            assert process.wait(20) == 0
            assert process.stdout.read() == ""


def test_the_command_speaks_the_protocol_and_nothing_else_on_stdout() -> None:
    """The model that it asks is behind a server of the same kind. It ends when its client does."""
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
        {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "answer_question", "arguments": {}}},
    ]
    with running(Oracle()) as server:
        command = [sys.executable, "-c", COMMAND, "--mcp", "--agent", "direct", "--model", "stepladder"]
        environment = {**os.environ, "OPENAI_API_KEY": "none", "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(
            [*command, "--base-url", f"{server.url}/v1"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            replies = []
            for message in messages:
                process.stdin.write(json.dumps(message) + "\n")
                process.stdin.flush()
                if "id" in message:
                    replies.append(json.loads(process.stdout.readline()))
            process.stdin.close()
            assert process.stdout.read() == ""
            assert process.wait(20) == 0
    assert [reply["id"] for reply in replies] == [1, 2, 3]
    assert [tool["name"] for tool in replies[1]["result"]["tools"]] == ["answer_question"], "direct has no index"
    assert replies[2]["result"]["isError"] is True
