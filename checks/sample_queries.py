"""Samples next queries of a model, to be labelled for `checks/query_agreement.py --add`.

    python checks/sample_queries.py --model MODEL [--base-url URL] --data FOLDER --questions 25 --out ROWS.jsonl

In: questions with several hops (HotpotQA, 2WikiMultiHopQA, MuSiQue in FlashRAG's layout, in FOLDER) and a model, in
this process or behind an OpenAI-compatible server. The model gets the question and the answers of one or more hops, and
writes the next query. Out: one row per query, without `label` and `why`; beside it `ROWS.txt`, easier to read, with the
hops. Equal queries of a question are one row.
"""

import argparse
import json
import random
from contextlib import closing
from pathlib import Path
from typing import Any

from stepladder.agents import make_agent
from stepladder.core.requests import Generate, Sampling
from stepladder.core.trace import Author, Question, Segment
from stepladder.data import load_dataset
from stepladder.engines.registry import make_engine
from stepladder.oracle.decomposition import fill_references, hop_answers

_PROMPT = """\
You answer questions by searching an encyclopedia, one fact after the other. Write the next search query, on one line.

Question: Which river flows through the birthplace of the founder of Lindt?
Known: Who founded Lindt? Rodolphe Lindt
Next query: Where was Rodolphe Lindt born?

Question: Are Mount Meru and Ojos del Salado in the same country?
Known: In which country is Mount Meru? Tanzania
Next query: Ojos del Salado country

Question: {question}
{facts}
Next query:"""


def main() -> None:
    """Sample and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--base-url")
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--split", default="dev")
    parser.add_argument("--questions", type=int, default=25, help="per data set")
    parser.add_argument("--skip", type=int, default=0, help="questions that were used before")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--out", required=True, type=Path)
    given = parser.parse_args()
    asked = [each for name in ("hotpotqa", "2wikimultihopqa", "musique") for each in _ask(given, name)]
    sampling = Sampling(temperature=given.temperature, max_tokens=40)
    requests = [
        Generate((Segment(Author.PROMPT, prompt),), ("\n",), sampling, seed) for seed, (_, prompt) in enumerate(asked)
    ]
    where = {"base_url": given.base_url} if given.base_url else {"device": "auto"}
    engine = make_engine(
        "openai" if given.base_url else "transformers", make_agent("direct"), model=given.model, **where
    )
    with closing(engine):
        replies = engine.generate(requests[:1])  # what the prompts have in common is read once
        replies += engine.generate(requests[1:])
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for (row, _), reply in zip(asked, replies, strict=True):
        if isinstance(reply, Exception):
            raise reply
        query = reply.text.strip().strip("\"'`*")
        if query:
            rows.setdefault((row["id"], query), {**row, "query": query, "source": Path(given.model).name})
    own = ("set", "id", "known", "query", "source")
    lines = [json.dumps({key: row[key] for key in own}, ensure_ascii=False) for row in rows.values()]
    given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    texts = [f"{number}. {row['about']}\n   QUERY {row['query']}\n" for number, row in enumerate(rows.values())]
    given.out.with_suffix(".txt").write_text("\n".join(texts), encoding="utf-8")


def _ask(given: argparse.Namespace, name: str) -> list[tuple[dict[str, Any], str]]:
    """Rows without a query, with the prompt for each."""
    rng = random.Random(f"{name} {given.split}")
    questions = [each for each in load_dataset(str(given.data / name)).split(given.split) if len(each.hops) > 1]
    rng.shuffle(questions)
    asked = []
    for question in questions[given.skip : given.skip + given.questions]:
        searched = [number for number, hop in enumerate(question.hops, start=1) if hop.passages]
        known = searched[: rng.randint(1, max(1, len(searched) - 1))]
        hops = [f"{number}. {text}" for number, text in enumerate(_hop_texts(question), start=1)]
        facts = "\n".join(f"Known: {_hop_texts(question)[number - 1]}" for number in known)
        row = {"set": name, "id": question.id, "known": known}
        row["about"] = f"{name} {question.text} = {question.answers[0]} | known {known} | {' | '.join(hops)}"
        asked.append((row, _PROMPT.format(question=question.text, facts=facts)))
    return asked


def _hop_texts(question: Question) -> list[str]:
    answers = hop_answers(question)
    return [f"{fill_references(hop.question, answers)} {hop.answer}" for hop in question.hops]


if __name__ == "__main__":
    main()
