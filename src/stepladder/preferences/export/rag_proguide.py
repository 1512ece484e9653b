"""Reading and writing records of RAG-ProGuide, the preference data published with ReasonRAG.

A record is one JSON object; the published file is an array of them:

    {"instruction": "...", "input": "...", "prompt": "...", "chosen": "...", "rejected": "...",
     "chosen_action_type": "Query Generation", "chosen_content": "...",
     "rejected_action_type": "Evidence Extraction", "rejected_content": "...", "layer": 0}

In the published file `instruction` is a system prompt and `input` the user message, `prompt` is both with labels, and
`layer` is the depth of the step. LLaMA-Factory joins `instruction` and `input` by a newline into one message, and so
does the reader here. Our agents send a single message, so the writer puts the whole context into `instruction` and
leaves `input` empty: joined again, it is the same text.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import ConfigDict, Field

from stepladder.core.config import Config
from stepladder.core.errors import StepladderError
from stepladder.core.io.jsonl import read_objects, text_lines
from stepladder.core.io.records import read_records
from stepladder.core.trace import Action, ActionKind, Author, Pair, Segment, Side
from stepladder.preferences.export.base import Format, PairTexts, Row, RowFile

ActionType = Literal["Query Generation", "Evidence Extraction", "Answer Generation", "Other"]

#: Sub-answers are extracted from passages, which RAG-ProGuide calls evidence.
_TYPE_OF: dict[ActionKind, ActionType] = {
    ActionKind.QUERY: "Query Generation",
    ActionKind.EVIDENCE: "Evidence Extraction",
    ActionKind.SUB_ANSWER: "Evidence Extraction",
    ActionKind.ANSWER: "Answer Generation",
    ActionKind.MALFORMED: "Other",
}
_KIND_OF: dict[ActionType, ActionKind] = dict(
    zip(get_args(ActionType), (ActionKind.QUERY, ActionKind.EVIDENCE, ActionKind.ANSWER, ActionKind.MALFORMED))
)

_USAGE = """Records as in RAG-ProGuide, the data published with ReasonRAG. `instruction` is everything that the policy
saw, `chosen` and `rejected` are exactly the steps it wrote; `input` is empty.
**No chat template has been applied.** `layer` is the number of earlier steps. Sub-answers count as evidence.

`stepladder.preferences.export.read_rag_proguide(path)` reads these files, and the published one, as pairs.
"""


def _row(texts: PairTexts) -> Row:
    pair = texts.pair
    return {
        "instruction": texts.context,
        "input": "",
        "prompt": texts.context,
        "chosen": texts.chosen,
        "rejected": texts.rejected,
        "chosen_action_type": _TYPE_OF[pair.chosen.action.kind],
        "chosen_content": _content(pair.chosen.action),
        "rejected_action_type": _TYPE_OF[pair.rejected.action.kind],
        "rejected_content": _content(pair.rejected.action),
        "layer": pair.depth,
    }


def _content(action: Action) -> str:
    return "" if action.kind is ActionKind.MALFORMED else action.content


def _usage(splits: Sequence[str], model: str | None) -> str:  # noqa: ARG001
    return _USAGE


FORMAT = Format(lambda split: [RowFile(f"{split}.json", _row)], _usage)


# --- reading ----------------------------------------------------------------------------------------------


class _Record(Config):
    """One published pair. Other fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")

    instruction: str
    input: str
    chosen: Annotated[str, Field(min_length=1)]
    rejected: str
    chosen_action_type: ActionType
    chosen_content: str
    rejected_action_type: ActionType
    rejected_content: str
    layer: Annotated[int, Field(ge=0)]


#: The first bytes of our own records.
_OURS = '{"record":'


def read_pair_file(path: Path, agent: str = "reasonrag") -> Iterator[Pair]:
    """The pairs of a file: our own, or RAG-ProGuide's, which name no agent."""
    ours = next(text_lines(path, StepladderError), "").startswith(_OURS)
    return read_records(path, Pair) if ours else read_rag_proguide(path, agent)


def read_rag_proguide(path: str | Path, agent: str = "reasonrag") -> Iterator[Pair]:
    """The pairs of a RAG-ProGuide file: a JSON array or one object per line, plain or `.gz`.

    Segments have no token ids. The file does not name the questions, so every pair gets its own question id.
    """
    path = Path(path)
    for number, (where, plain) in enumerate(_records(path), start=1):
        try:
            record = _Record.read(plain, where)
        except StepladderError as error:
            raise StepladderError(f"{error}. Expected records of RAG-ProGuide, or pairs of Stepladder") from error
        context = "\n".join(part for part in (record.instruction, record.input) if part)
        if not context:
            raise StepladderError(f"{where}: 'instruction' and 'input' are both empty; expected the prompt in them")
        yield Pair(
            question_id=f"{path.name}#{number}",
            agent=agent,
            context=(Segment(Author.PROMPT, context),),
            chosen=_side(record.chosen, record.chosen_action_type, record.chosen_content),
            rejected=_side(record.rejected, record.rejected_action_type, record.rejected_content),
            depth=record.layer,
            judge="rag-proguide",
        )


def _side(text: str, type: ActionType, content: str) -> Side:
    kind = _KIND_OF[type]
    if kind is ActionKind.MALFORMED:
        action = Action(kind, text, problem="no action is marked in it")
    elif not content:
        action = Action(ActionKind.MALFORMED, text, problem=f"the {kind} in it is empty or its tag is not closed")
    else:
        action = Action(kind, content)
    return Side(Segment(Author.POLICY, text), action)


def _records(path: Path) -> Iterator[tuple[str, object]]:
    """The records of a file, each with its location for error messages."""
    first = next((line for line in text_lines(path, StepladderError) if line.strip()), None)
    if first is None:
        raise StepladderError(f"{path}: the file is empty; expected a JSON array of pairs, or one pair per line")
    if not first.lstrip().startswith("["):
        yield from ((f"{path}:{line.number}", line.data) for line in read_objects(path, StepladderError))
        return
    try:
        records = json.loads("".join(text_lines(path, StepladderError)))
    except ValueError as error:
        raise StepladderError(f"{path}: not JSON: {error}") from error
    yield from ((f"{path}, record {number}", record) for number, record in enumerate(records, start=1))
