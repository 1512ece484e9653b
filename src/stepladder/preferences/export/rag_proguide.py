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

import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from stepladder.core.io.jsonl import preview
from stepladder.core.trace import Action, ActionKind, Author, Pair, Segment, Side
from stepladder.preferences.export.base import ExportError, ExportFiles, Format, Row, pair_texts, write_rows

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


def _row(pair: Pair) -> Row:
    texts = pair_texts(pair)
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


def _write(folder: Path, pairs: Mapping[str, Iterable[Pair]], model: str | None) -> ExportFiles:  # noqa: ARG001
    rows: dict[str, int] = {}
    for split, each in pairs.items():
        rows |= write_rows(folder, each, {f"{split}.json": _row})
    return ExportFiles(rows, _USAGE)


FORMAT = Format("records like those of RAG-ProGuide, the data published with ReasonRAG", _write)


# --- reading ----------------------------------------------------------------------------------------------


class _Record(BaseModel):
    """One published pair. Other fields are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)

    instruction: str
    input: str
    chosen: Annotated[str, Field(min_length=1)]
    rejected: str
    chosen_action_type: ActionType
    chosen_content: str
    rejected_action_type: ActionType
    rejected_content: str
    layer: Annotated[int, Field(ge=0)]


_ARRAY = TypeAdapter(list[_Record])


def read_rag_proguide(path: str | Path, agent: str = "reasonrag") -> Iterator[Pair]:
    """The pairs of a RAG-ProGuide file: a JSON array or one object per line, plain or `.gz`.

    Segments have no token ids. The file does not name the questions, so every pair gets its own question id.
    """
    path = Path(path)
    for number, (where, record) in enumerate(_records(path), start=1):
        context = "\n".join(part for part in (record.instruction, record.input) if part)
        if not context:
            raise ExportError(f"{where}: 'instruction' and 'input' are both empty; expected the prompt in them")
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


def _records(path: Path) -> Iterator[tuple[str, _Record]]:
    """The records of a file, each with its location for error messages."""
    content = _bytes(path).removeprefix(b"\xef\xbb\xbf")
    if content.lstrip().startswith(b"["):
        try:
            records = _ARRAY.validate_json(content)
        except ValidationError as error:
            raise _wrong(str(path), error) from error
        yield from ((f"{path}: record {number}", record) for number, record in enumerate(records, start=1))
    elif content.strip():
        for number, line in enumerate(content.split(b"\n"), start=1):
            if line.strip():
                try:
                    yield f"{path}:{number}", _Record.model_validate_json(line)
                except ValidationError as error:
                    raise _wrong(f"{path}:{number}", error) from error
    else:
        raise ExportError(f"{path}: the file is empty; expected a JSON array of pairs, or one pair per line")


def _bytes(path: Path) -> bytes:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read()
    except FileNotFoundError:
        raise ExportError(f"{path}: there is no such file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as problem:
        raise ExportError(f"{path}: the gzip data is damaged or cut off ({problem}); get the file again") from problem
    except OSError as problem:
        raise ExportError(f"{path}: cannot be read: {problem.strerror or problem}") from problem


def _wrong(where: str, error: ValidationError) -> ExportError:
    first = error.errors()[0]
    position = [part for part in first["loc"] if isinstance(part, int)]
    field = "".join(f"{part!r}: " for part in first["loc"] if isinstance(part, str))
    where = f"{where}: record {position[0] + 1}" if position else where
    if first["type"] == "missing":
        return ExportError(
            f"{where}: {field}is missing; expected a record of RAG-ProGuide (for a run's pairs, name the run)"
        )
    found = "" if first["type"] == "json_invalid" else f", found {preview(first['input'])}"
    return ExportError(f"{where}: {field}{first['msg']}{found}")
