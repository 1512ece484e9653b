"""The files of published question sets become questions with their gold, and a pool of passages."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from stepladder.core.trace import GoldText, Hop, Passage, Question
from stepladder.data import load_dataset
from stepladder.data.formats.base import detect_format, read_questions
from stepladder.data.formats.rows import QuestionFileError, rows
from tests.support.question_files import ADA, DUST, HOTPOT, RAIN, TWOWIKI, write

MUSIQUE = {
    "id": "2hop__1_2",
    "question": "Where did the maker of Rain die?",
    "answer": "Velm",
    "answer_aliases": ["Velm City"],
    "answerable": True,
    "paragraphs": [
        {"idx": 0, "title": "Dust", "paragraph_text": "Dust is a film.", "is_supporting": False},
        {"idx": 1, "title": "Rain", "paragraph_text": "Rain is a film by Ada Orm.", "is_supporting": True},
        {"idx": 2, "title": "Rain", "paragraph_text": "Rain also falls from the sky.", "is_supporting": False},
        {"idx": 3, "title": "Ada Orm", "paragraph_text": "Ada Orm died in Velm.", "is_supporting": True},
    ],
    "question_decomposition": [
        {"id": 1, "question": "Rain >> director", "answer": "Ada Orm", "paragraph_support_idx": 1},
        {"id": 2, "question": "where did #1 die ?", "answer": "Velm", "paragraph_support_idx": 3},
    ],
}


def one(path: Path) -> Question:
    (question,) = load_dataset(str(path)).split("all")
    return question


def test_hotpotqa(tmp_path: Path) -> None:
    data = load_dataset(str(write(tmp_path / "hotpot_train_v1.1.json", HOTPOT, {**HOTPOT, "_id": "2"})))
    question = data.split("all")[0]
    assert (question.id, question.kind, question.answers) == ("5ade", "bridge", ("Velm",))
    assert question.gold_passages == (("Rain (film)",), ("Ada Orm",))
    rain = GoldText("Rain (film)", "Rain (film)", ("Rain is a 1950 film. It was directed by Ada Orm.",))
    ada = GoldText("Ada Orm", "Ada Orm", ("Ada Orm was a painter and film director. She died in Velm.",))
    assert question.hops == (
        Hop("Who is the director of Rain?", "Ada Orm", ("Rain (film)",), gold_texts=(rain,)),
        Hop("Where did #1 die?", "Velm", ("Ada Orm",), gold_texts=(ada,)),
    )
    assert list(data.passages or ()) == [  # each once, though both questions have it
        Passage("Rain (film)", "Rain (film)", "Rain is a 1950 film. It was directed by Ada Orm."),
        Passage("Dust", "Dust", "Dust is a 1960 film."),
        Passage("Ada Orm", "Ada Orm", "Ada Orm was a painter and film director. She died in Velm."),
    ]


def test_the_columns_of_a_table_are_read_like_pairs(tmp_path: Path) -> None:
    columns = {
        **HOTPOT,
        "supporting_facts": {"title": ["Rain (film)", "Ada Orm"], "sent_id": [1, 1]},
        "context": {"title": [RAIN[0], DUST[0], ADA[0]], "sentences": [RAIN[1], DUST[1], ADA[1]]},
    }
    assert one(write(tmp_path / "a.jsonl", columns)) == one(write(tmp_path / "b.json", HOTPOT))


def test_the_fullwiki_file_may_lack_gold_passages(tmp_path: Path) -> None:
    question = one(write(tmp_path / "dev.json", {**HOTPOT, "context": [RAIN, DUST]}))
    assert question.hops == ()
    assert question.gold_passages == (("Rain (film)",), ("Ada Orm",))
    assert [(text.title, bool(text.excerpts)) for text in question.gold_texts] == [
        ("Rain (film)", True),
        ("Ada Orm", False),
    ]


def test_questions_without_a_decomposition_are_counted(tmp_path: Path) -> None:
    bare = {**HOTPOT, "_id": "2", "context": [RAIN, DUST]}
    data = load_dataset(str(write(tmp_path / "dev.json", HOTPOT, bare)))
    assert data.skipped("all") == {"decompositions that cannot be derived from the annotation": 1}


def test_2wikimultihopqa_with_aliases(tmp_path: Path) -> None:
    path = write(tmp_path / "train.json.gz", TWOWIKI)
    lines = [
        {"Q_id": "Q2", "aliases": ["A. Orm"], "demonyms": []},
        {"Q_id": "Q3", "aliases": [], "demonyms": ["Velmish"]},
    ]
    (tmp_path / "id_aliases.json").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    question = one(path)
    assert question.answers == ("Velm", "Velmish")
    assert tuple(replace(hop, gold_texts=()) for hop in question.hops) == (
        Hop("Who directed Rain?", "Ada Orm", ("Rain (film)",), ("A. Orm",)),
        Hop("Where did #1 die?", "Velm", ("Ada Orm",), ("Velmish",)),
    )


def test_a_test_file_has_questions_without_answers(tmp_path: Path) -> None:
    hidden = {key: value for key, value in TWOWIKI.items() if key in ("_id", "question", "context", "type")}
    question = one(write(tmp_path / "test.json", hidden))
    assert (question.answers, question.hops, question.gold_passages) == ((), (), ())


def test_musique(tmp_path: Path) -> None:
    unanswerable = {**MUSIQUE, "answerable": False}
    data = load_dataset(str(write(tmp_path / "musique_full_v1.0_train.jsonl", MUSIQUE, unanswerable)))
    (question,) = data.split("all")
    assert data.skipped("all") == {"unanswerable": 1}
    ids = {passage.text: passage.id for passage in data.passages or ()}
    assert len(ids) == len(set(ids.values())) == 4  # two paragraphs of one article are two passages
    rain, ada = ids["Rain is a film by Ada Orm."], ids["Ada Orm died in Velm."]
    assert [hop.gold_texts for hop in question.hops] == [
        (GoldText(rain, "Rain", ("Rain is a film by Ada Orm.",)),),
        (GoldText(ada, "Ada Orm", ("Ada Orm died in Velm.",)),),
    ]
    question = replace(question, hops=tuple(replace(hop, gold_texts=()) for hop in question.hops))
    assert question == Question(
        "2hop__1_2",
        "Where did the maker of Rain die?",
        ("Velm", "Velm City"),
        (Hop("Who directed Rain?", "Ada Orm", (rain,)), Hop("Where did #1 die?", "Velm", (ada,), ("Velm City",))),
        ((rain,), (ada,)),
        "2hop",
    )


def test_popqa(tmp_path: Path) -> None:
    path = tmp_path / "popQA.tsv"
    path.write_text(
        "id\tsubj\tprop\tobj\tquestion\tpossible_answers\n"
        '7\tAda Orm\toccupation\tpainter\tWhat is Ada Orm\'s occupation?\t"[""painter"", ""artist""]"\n'
    )
    data = load_dataset(str(path))
    text = "What is Ada Orm's occupation?"
    hops = (Hop(text, "painter", (), ("artist",)),)
    assert data.split("all") == (Question("7", text, ("painter", "artist"), hops, kind="occupation"),)
    assert data.passages is None


def test_bamboogle(tmp_path: Path) -> None:
    table = tmp_path / "Bamboogle Prerelease - Sheet1.csv"
    table.write_text('Question,Answer\n"Who, if any, built Span One?",Ena Voss\nWho?,Orm\n')
    expected = (Question("1", "Who, if any, built Span One?", ("Ena Voss",)), Question("2", "Who?", ("Orm",)))
    objects = [{"Question": each.text, "Answer": each.answers[0]} for each in expected]
    for path in (table, write(tmp_path / "test.json", *objects), write(tmp_path / "test.jsonl", *objects)):
        assert load_dataset(str(path)).split("all") == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": "x"}', r"unknown .*format. Found the keys \[\"text\"\]; expected .*HotpotQA \(context"),
        ("a.json", '{"question": "x"}', "expected a JSON list of questions"),
        ("a.json", "[1]", "a.json:1: expected a JSON object, found 1"),
        ("a.json", '[{"question": "x", "answer": "y"}, {"que', "incomplete after item 1: .*download the file again"),
        ("a.json", "", "the JSON list is incomplete after item 0: it is empty"),
        ("a.json", "[]", "the file is empty"),
        ("a.csv", "Question,Answer\na?,b,c\n", "a.csv:2: expected 2 fields"),
        ("a.csv", "Question,Answer\na?,\n", "'answer' should be a non-empty string"),
        ("a.csv", "q,a\nWho?,Orm\n", r'a.csv: a table needs .* columns question and answer .*; found \["q", "a"\]$'),
        ("a.tsv", "q\ta\nWho?\tOrm\n", r'columns question and answer .*; found \["q", "a"\]$'),
        (
            "a.csv",
            'question;answer\n"Who, if any?";Orm, or Voss\n',
            r"question and answer .*; found one column, .question;answer.\. Is it separated by ';'\?",
        ),
        ("a.csv", "question\tanswer\nWho?\tOrm\n", r"separated by tabs\? Save it .* with tabs as \.tsv"),
        ("a.tsv", "question,answer\nWho?,Orm\n", r"separated by commas\? Save it with commas as \.csv"),
        ("a.tsv", "id\tquestion\tpossible_answers\n1\ta?\tb\n", "'possible_answers' should be a JSON list"),
        ("a.txt", "Who?", "questions are read from .jsonl, .json, .csv, .tsv"),
        ("a.json", '[{"question": "x", "context": [[1, 2]], "_id": "1"}]', "'context' should be pairs that begin with"),
        ("a.json", '[{"question": "x", "context": [["a", 2]], "_id": "1"}]', "a list of sentences for each title"),
        (
            "a.json",
            '[{"question": "x", "context": [], "evidences": [["a"]], "_id": "1"}]',
            "'evidences' should be triples",
        ),
        (
            "a.json",
            '[{"question": "x", "context": [], "evidences": 1, "_id": "1"}]',
            "'evidences' should be triples: subject, relation, object, found 1",
        ),
        ("a.json", '[{"question": "x", "context": []}]', "'_id' should be a non-empty string"),
        ("a.jsonl", '{"id": "1", "question": "x", "paragraphs": 1}', "'paragraphs' should be a list of objects"),
        ("a.json", '[{"question": " ", "answer": "y"}]', "'question' is blank"),
        ("a.jsonl", '{"id": "1", "question": "x", "paragraphs": [{}]}', "a list of objects with 'title' and"),
        (
            "a.jsonl",
            '{"id": "1", "question": "x", "paragraphs": [], "question_decomposition": [1]}',
            "with 'question' and 'answer'",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(QuestionFileError, match=message):
        read_questions(path)


def test_flashrag_may_be_a_list(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", {"id": "1", "question": "Who?", "golden_answers": ["Orm"]})
    assert read_questions(path).questions == (Question("1", "Who?", ("Orm",)),)


def test_ids_must_differ(tmp_path: Path) -> None:
    with pytest.raises(QuestionFileError, match="the id '5ade' is used twice"):
        read_questions(write(tmp_path / "a.json", HOTPOT, HOTPOT))


def test_a_list_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepladder.data.formats.rows._CHUNK", 7)
    path = write(tmp_path / "a.json", {"question": "Wo? é", "answer": "]["}, {"question": "\ud800", "answer": "b"})
    assert [line.data["question"] for line in rows(path)] == ["Wo? é", "\ufffd"]
    path.write_text(f"\ufeff {path.read_text()} ")
    assert [line.number for line in rows(path)] == [1, 2]


def test_the_layout_is_told_by_the_content(tmp_path: Path) -> None:
    flashrag = {"id": "1", "question": "x", "golden_answers": ["y"]}
    for number, (found, name) in enumerate(
        [(HOTPOT, "HotpotQA"), (TWOWIKI, "2WikiMultiHopQA"), (MUSIQUE, "MuSiQue"), (flashrag, "FlashRAG")]
    ):
        assert detect_format(write(tmp_path / f"{number}.jsonl", found))[0].name == name
