"""Bridges, museums and ships: their types and relations, as data."""

from stepladder.data.atlas.schema import Comparison, EntityType, Relation

TYPES = (
    EntityType(
        "bridge", 32, "spans", "bridge", "the {}", "the {}", ("Townspeople call it the {}.", "Its nickname is the {}.")
    ),
    EntityType(
        "museum",
        34,
        "based_in",
        "museum",
        "the {}",
        "the {}",
        ("Visitors know it as the {}.", "It is often called the {}."),
    ),
    EntityType(
        "ship",
        32,
        "built_by",
        "ship",
        "the {}",
        "the ship {}",
        ("Its crew called it the {}.", "It was laid down as the {}."),
    ),
)

RELATIONS = (
    # --- bridge
    Relation(
        "spans",
        ("bridge",),
        "river",
        facts=("{S} is a bridge over {O}.", "{S} is a bridge that spans {O}.", "{S} is a bridge across {O}."),
        asks=("Which river does {S} span?", "Over which river does {S} lead?"),
        phrases=("the river that {S} spans", "the river crossed by {S}"),
        predicate="spans {O}",
        same="Do {A} and {B} span the same river?",
    ),
    # --- museum; its city and sponsor are among the relations of organizations
    Relation(
        "visitors",
        ("museum",),
        "number",
        facts=(
            "{S} receives {O} visitors a year.",
            "{S} has {O} visitors a year.",
            "The yearly number of visitors to {S} is {O}.",
        ),
        asks=("How many visitors a year does {S} have?", "How many visitors does {S} receive a year?"),
        compare=Comparison(
            "Which museum has more visitors, {A} or {B}?",
            "Which museum has fewer visitors, {A} or {B}?",
            "Does {A} have more visitors than {B}?",
            "Does {A} have fewer visitors than {B}?",
        ),
    ),
    # --- bridge and museum
    Relation(
        "designed_by",
        ("bridge", "museum"),
        "person",
        facts=("{S} was designed by {O}.", "The designs for {S} were drawn by {O}.", "{O} designed {S}."),
        asks=("Who designed {S}?", "Who drew the designs for {S}?"),
        phrases=("the designer of {S}", "the person who designed {S}"),
        predicate="was designed by {O}",
        inverse_asks=("Which {T} did {O} design?", "Which {T} was designed by {O}?"),
        inverse_phrases=("the {T} designed by {O}",),
        same="Were {A} and {B} designed by the same person?",
    ),
    Relation(
        "opened_on",
        ("bridge", "museum"),
        "date",
        facts=("{S} opened on {O}.", "The opening of {S} took place on {O}.", "{S} was opened to the public on {O}."),
        asks=("On which date did {S} open?", "When did {S} open?"),
        compare=Comparison(
            "Which {T} opened later, {A} or {B}?",
            "Which {T} opened first, {A} or {B}?",
            "Did {A} open after {B}?",
            "Did {A} open before {B}?",
            ("later", "earlier"),
        ),
    ),
    # --- ship
    Relation(
        "built_by",
        ("ship",),
        "company",
        facts=("{S} is a ship built by {O}.", "{S} is a ship whose builder is {O}.", "{S} is a ship that {O} built."),
        asks=("Which company built {S}?", "Which company was the builder of {S}?"),
        phrases=("the company that built {S}", "the builder of {S}"),
        predicate="was built by {O}",
        same="Were {A} and {B} built by the same company?",
    ),
    Relation(
        "launched_on",
        ("ship",),
        "date",
        facts=("{S} was launched on {O}.", "The launch of {S} took place on {O}.", "{S} had its launch on {O}."),
        asks=("On which date was {S} launched?", "When was {S} launched?"),
        compare=Comparison(
            "Which ship was launched later, {A} or {B}?",
            "Which ship was launched first, {A} or {B}?",
            "Was {A} launched after {B}?",
            "Was {A} launched before {B}?",
            ("later", "earlier"),
        ),
    ),
    Relation(
        "home_port",
        ("ship",),
        "city",
        facts=("The home port of {S} is {O}.", "{S} has {O} as its home port.", "{S} sails from its home port, {O}."),
        asks=("What is the home port of {S}?", "Which city is the home port of {S}?"),
        phrases=("the home port of {S}", "the city that is the home port of {S}"),
        predicate="has its home port at {O}",
        same="Do {A} and {B} have the same home port?",
    ),
    Relation(
        "captain",
        ("ship",),
        "person",
        facts=(
            "The first captain of {S} was {O}.",
            "{S} had {O} as its first captain.",
            "{O} was the first captain of {S}.",
        ),
        asks=("Who was the first captain of {S}?", "Whom did {S} have as its first captain?"),
        phrases=("the first captain of {S}", "the person who was the first captain of {S}"),
        predicate="was first captained by {O}",
        inverse_asks=("Which ship had {O} as its first captain?", "Which ship's first captain was {O}?"),
        inverse_phrases=("the ship whose first captain was {O}",),
    ),
    # --- ship and bridge
    Relation(
        "length",
        ("ship", "bridge"),
        "number",
        facts=("{S} has a length of {O}.", "{S} is {O} long.", "The length of {S} is {O}."),
        asks=("How long is {S}?", "What is the length of {S}?"),
        compare=Comparison(
            "Which {T} is longer, {A} or {B}?",
            "Which {T} is shorter, {A} or {B}?",
            "Is {A} longer than {B}?",
            "Is {A} shorter than {B}?",
        ),
    ),
)
