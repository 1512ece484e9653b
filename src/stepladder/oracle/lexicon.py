"""The lexicon of query matching: synonyms of relation words, and kinds of answers.

In: nothing. Out: tables for `query_matching.py`: relation words with the same meaning (`same_word`), nouns that name a
kind of answer (`KIND_OF`), and kinds that exclude each other (`kinds_conflict`). The tables cover the relations that
encyclopedias and multi-hop datasets ask about; any other word equals only its own stem.
"""

from functools import lru_cache

import Stemmer

_STEMMER = Stemmer.Stemmer("english")


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """The Snowball stem of a lower-case word."""
    return str(_STEMMER.stemWord(word))


def _listed(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Words without information about the relation. The kind of answer already shows that a place is asked for.
STOP_WORDS = _listed(
    """a an the of in on at to by for from with as into than through over during about and or that this these those
    beside besides near behind across along between under above within around which what who whom whose where when how
    many much is are was were be been being has have had having do does did
    it its he his she her they their them there one some any name named call called take took taken make made makes
    tell give find me i you please can could would will shall may also ever not no s
    locate located situated lie lies lay stand stands stood rise rises sit sits based home"""
)

#: Words that many relations share; they count half.
WEAK_WORDS = frozenset(map(stem, _listed("first last main chief best known famous current former original official")))

_FAMILIES = (
    "born birth native birthplace",
    "die died death dead deceased",
    "study studied studies attend attended educated education degree graduate student alma",
    "marry married marriage spouse husband wife wed partner",
    "mentor mentored teacher taught tutor advisor adviser",
    "occupation profession job work worked works living career",
    "found founded founder founding establish established establishment inception creation",
    "headquarters headquartered headquarter base seat",
    "employees employee employ employed staff workforce",
    "rival rivals competitor compete competes",
    "industry trade sector branch active",
    "sponsor sponsors sponsored sponsorship",
    "coach coached trainer",
    "rector",
    "students student enrol enrols enrolled enrolment enrollment",
    "capital",
    "language languages speak spoken",
    "currency money",
    "independence independent",
    "president",
    "mayor",
    "choose chose chosen elect elected",
    "population inhabitants inhabitant people populous",
    "bank banks",
    "twin twinned",
    "flow flows",
    "source spring",
    "mouth",
    "length long",
    "height high tall elevation altitude",
    "highest tallest",
    "longest",
    "map mapped mapping",
    "climb climbed climber ascent ascend ascended ascends",
    "nearest closest",
    "span spans cross crosses lead leads",
    "design designed designs designer architect",
    "open opened opening opens inaugurated inauguration",
    "visitor visitors visit",
    "build built builder builds construct constructed construction",
    "launch launched",
    "port",
    "captain captained",
    "write wrote written writer author authored",
    "publish published publication publisher publishes",
    "set setting",
    "page pages",
    "direct directed director directs",
    "release released",
    "star stars starring starred role play plays played actor actress cast lead leading",
    "compose composed composer composes",
    "form formed come comes came originate originated origin",
    "genre style",
    "sing sings sang sung singer vocalist performer performed perform performs",
    "label",
    "record recorded recording recordings studio",
    "produce produced producer",
    "paint painted painter",
    "paint painted finish finished complete completed",
    "hold holds held hang hangs collection belong belongs",
    "depict depicts depicted depiction",
    "father dad",
    "mother mum",
    "parent parents",
    "child children son daughter",
    "sibling brother sister",
    "citizen citizenship nationality",
    "religion denomination",
    "owner owned owns own",
    "win won winner",
    "member",
    "county",
    "border borders",
)

_MEMBERSHIPS: dict[str, frozenset[int]] = {}
for _number, _family in enumerate(_FAMILIES):
    for _word in map(stem, _family.split()):
        _MEMBERSHIPS[_word] = _MEMBERSHIPS.get(_word, frozenset()) | {_number}

#: Compounds of two words, one of them a kind of answer.
COMPOUNDS = {
    "birthplace": ("place", "birth"),
    "birthdate": ("date", "birth"),
    "birthday": ("date", "birth"),
    "hometown": ("city", "birth"),
}


def has_synonyms(word: str) -> bool:
    """Whether a stem is in the table of synonyms, so that its meaning differs from that of other entries."""
    return word in _MEMBERSHIPS


def same_word(one: str, other: str) -> bool:
    """Whether two stems mean the same relation.

    >>> same_word(stem("born"), stem("birth")), same_word(stem("born"), stem("died"))
    (True, False)
    """
    return one == other or not _MEMBERSHIPS.get(one, frozenset()).isdisjoint(_MEMBERSHIPS.get(other, frozenset()))


_ROLES = """founder director author writer publisher composer producer performer singer painter architect designer
builder captain coach mayor president rector mentor spouse husband wife father mother"""

_KIND_NOUNS = {
    "who": _ROLES,
    "time": "year date day month decade century time",
    "quantity": "number amount population height length size kilometre kilometer metre meter percentage",
    "place": "place location",
    "city": "city town village",
    "country": "country nation",
    "state": "state province",
    "county": "county district",
    "continent": "continent",
    "river": "river",
    "mountain": "mountain peak",
    "person": "person man woman",
    "organisation": "organisation organization institution",
    "company": "company firm label",
    "university": "university college",
    "club": "club team",
    "museum": "museum gallery",
    "bridge": "bridge",
    "ship": "ship vessel",
    "book": "book novel",
    "film": "film movie",
    "band": "band",
    "album": "album",
    "painting": "painting",
}

#: A noun (in singular or plural) to the kind of thing it names.
KIND_OF: dict[str, str] = {
    form: kind
    for kind, nouns in _KIND_NOUNS.items()
    for noun in nouns.split()
    for form in (noun, f"{noun}s", f"{noun[:-1]}ies")
}

#: Nouns that name a kind and a relation at once.
RELATION_NOUNS = _listed(f"population height length size label {_ROLES}")

_ORGANISATIONS = frozenset({"organisation", "company", "university", "club", "museum", "band"})
_PLACES = _listed("where place city country state county continent river mountain bridge")
_PLACES |= _ORGANISATIONS - {"band"}
#: General kinds, and the specific ones that each includes.
_INCLUDES: dict[str, frozenset[str]] = {
    "who": frozenset({"person"}) | _ORGANISATIONS,
    "organisation": _ORGANISATIONS,
    "where": _PLACES,
    "place": _PLACES,
}


def kinds_conflict(one: str | None, other: str | None) -> bool:
    """Whether no answer can be of both kinds. None is any kind.

    >>> kinds_conflict("where", "city"), kinds_conflict("where", "time"), kinds_conflict("river", "city")
    (False, True, True)
    """
    if one is None or other is None or one == other:
        return False
    return other not in _INCLUDES.get(one, frozenset()) and one not in _INCLUDES.get(other, frozenset())
