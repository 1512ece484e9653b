"""Turn Wikidata relations into questions. 2WikiMultiHopQA's evidence and many hops of MuSiQue use these relations.

In: a relation and its subject, a name or a reference such as `#1`. Out: the question for the object.

    >>> relation_question("place of birth", "Ada Orm"), relation_question("highest point", "#1")
    ('Where was Ada Orm born?', 'What is the highest point of #1?')
"""

from pathlib import Path

from stepladder.core.io.yaml_tables import read_table

#: The question template of each relation. Other relations become "What is the RELATION of SUBJECT?".
_QUESTIONS: dict[str, str] = read_table(Path(__file__).with_suffix(".yaml"))


def relation_question(relation: str, subject: str) -> str:
    """The question for the object of a relation."""
    relation = " ".join(relation.split())
    return _QUESTIONS.get(relation, f"What is the {relation} of {{}}?").replace("{}", subject.strip())
