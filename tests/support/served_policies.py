"""A scripted policy behind OpenAI-compatible servers: it plays `search-r1` on Atlas, well or badly by chance."""

import json
import random
from typing import Any

from stepladder.core.trace import Question
from tests.support.openai_server import Answer, says_all

#: Settings of a run over the smallest Atlas.
DATA = {"data": {"name": "atlas-small"}, "agent": "search-r1", "search": {"k": 1}}


class Player:
    """Answers by what it is sent alone: the same call gets the same reply, from any server."""

    def __init__(self, questions: list[Question] | tuple[Question, ...]) -> None:
        self.answers = {question.text: question.answers[0] for question in questions}
        #: Samples written.
        self.samples = 0

    def write(self, body: dict[str, Any], sample: int) -> str:
        messages = body["messages"]
        question, answer = next(pair for pair in self.answers.items() if pair[0] in messages[0]["content"])
        seed = body["seed"] if body["temperature"] else 0
        draw = random.Random(f"{json.dumps(messages)} {seed} {sample if body['temperature'] else 0}")
        if len(messages) == 1:
            query = draw.choice([question, question[: len(question) // 2], "a query"])
            return f"<think>Look it up.</think>\n<search>{query}</search>"
        return f"<think>It says so.</think>\n<answer>{draw.choice([answer, 'Nobody'])}</answer>"

    def reply(self, body: dict[str, Any], _: int = 0) -> Answer:
        texts = [self.write(body, sample) for sample in range(body.get("n", 1))]
        self.samples += len(texts)
        return says_all(texts, usage={"prompt_tokens": 100, "completion_tokens": 10 * len(texts)})
