"""The grammar of the embedded corpus: the possible derivations and their weights.

Every function returns a part (parts.py) that is sampled into the records of readings.py;
`sentence()` is the start. Numbers are weights. lexicon.txt explains the classes of nouns (H human,
A animal, ...) and the frames of verbs.
"""
from functools import cache
from typing import Any, Callable

from . import lexicon
from .lexicon import ADJECTIVES, BE, FIXED, MODALS, NOUNS, POSSESSIVE, VERBS
from .parts import Choice, Join, Leaf
from .readings import (
    Both,
    Clause,
    Fixed,
    Group,
    NounPhrase,
    PrepositionalPhrase,
    Relative,
    Sentence,
    Subordinate,
    Tree,
    Word,
    leaves,
)

TENSES = ("present", "past")
NOTHING = Leaf(None)


def one_of(name: str, values) -> Choice:
    """A Choice among values of equal weight."""
    return Choice(name, [(1, str(value), Leaf(value)) for value in values])


def either_tense(part: Callable[[str], Any]) -> Choice:
    """A Choice between `part("present")` and `part("past")`."""
    return Choice("tense", [(1, tense, part(tense)) for tense in TENSES])


# ---- Uninflected words

def adverb(kind: str, english: str) -> Fixed:
    """An adverb of the lexicon: often, today, yesterday."""
    return Fixed(Tree("ADVP", leaves("RB", english)), FIXED[kind][english])


def conjunction(label: str, kind: str, english: str) -> Fixed:
    """A subordinating (IN) or coordinating (CC) conjunction of the lexicon."""
    return Fixed(leaves(label, english)[0], FIXED[kind][english])


def part_of_day(english: str) -> Fixed:
    """In the morning, in the evening."""
    noun_phrase = Tree("NP", leaves("DT", "the") + leaves("NN", english))
    return Fixed(Tree("PP", (*leaves("IN", "in"), noun_phrase)), FIXED["part of the day"][english])


ADVERB = one_of("adverb", [adverb("adverb", english) for english in FIXED["adverb"]])
SOMETIMES = adverb("adverb", "sometimes")
CONJUNCTIONS = {word: conjunction("IN", "conjunction", word) for word in FIXED["conjunction"]}
THAT = conjunction("IN", "that", "that")
AND = conjunction("CC", "coordination", "and")
BUT = conjunction("CC", "coordination", "but")


@cache
def time(tense: str) -> Choice:
    """An adverb of time or a part of the day."""
    adverbs = [adverb(tense, english) for english in FIXED[tense]]
    parts = [part_of_day(english) for english in FIXED["part of the day"]]
    return Choice("time", [
        (2, "adverb", one_of("adverb of time", adverbs)),
        (1, "part of the day", one_of("part of the day", parts)),
    ])


# ---- Noun phrases

PRONOUNS = {}                                  # {English subject form: Word}
for english, german, agreement in lexicon.PRONOUNS:
    subject, object_ = english.split()
    forms = dict(zip(lexicon.CASES, german.split()))
    PRONOUNS[subject] = Word("PRP", (subject, object_), forms, agreement)

NAMES = {}                                     # {(role, pronoun that resumes them): [Word, ...]}
for role, resumed, names in lexicon.NAMES:
    NAMES[role, resumed] = []
    for name in names.split():
        forms = dict.fromkeys(lexicon.CASES, name)
        NAMES[role, resumed].append(Word("NNP", (name, name), forms, "3"))

SINGULAR = {"the": 34, "a": 24, "this": 6, "every": 5, "my": 5, "his": 4, "her": 4}
PLURAL = {"the": 16, "a": 12, "this": 4, "my": 3, "his": 2, "her": 2,
          "many": 5, "two": 5, "three": 4}
PLACE = {"the": 76, "a": 10, "this": 5, "my": 3, "his": 3, "her": 3}
QUANTIFIERS = ("every", "many", "two", "three")
EXCLUDED = {                                   # determiners, by the use of a noun phrase
    "any": (),
    "place": (),
    "unquantified": ("every",),
    "negatable": QUANTIFIERS,
    "definite": ("a", *QUANTIFIERS),
}
RANKS = ("quality", "size", "age", "color")    # in this order German needs no comma


@cache
def adjectives(kind: str) -> Choice:
    """Tuples of zero, one or two adjectives that fit the nouns of a class."""
    possible = ADJECTIVES[NOUNS[kind][0].classes[0]]               # he and she have those of H
    pairs = []
    for one in possible:
        for other in possible:
            if RANKS.index(one.rank) < RANKS.index(other.rank):
                pairs.append((one, other))
    return Choice("adjectives", [
        (72, "none", Leaf(())),
        (25, "one", one_of("adjective", [(one,) for one in possible])),
        (3, "two", one_of("pair", pairs)),
    ])


@cache
def noun_phrase(kind: str, use: str = "any", modified: bool = False, number: str = "sp",
                half: int = 0, plain: bool = False) -> Choice:
    """Noun phrases of the class `kind`.

    use: a key of EXCLUDED; "negatable" are the objects that German can negate, "place" is always
    singular and mostly has "the". modified: sometimes with a modifier. number: s, p or both. half:
    every other noun, from the first (1) or the second (2). plain: no adjectives.
    """
    nouns = NOUNS[kind]
    if half:
        nouns = nouns[half - 1::2]
    any_noun = one_of("noun", nouns)
    owned_noun = one_of("noun", [noun for noun in nouns if "unowned" not in noun.classes])
    tables = {"s": SINGULAR, "p": PLURAL}
    if use == "place":
        tables = {"s": PLACE, "p": {}}
    alternatives = []
    for letter in number:
        for determiner, weight in tables[letter].items():
            if determiner not in EXCLUDED[use]:
                alternatives.append((weight, f"{determiner} {letter}", Join(
                    NounPhrase,
                    determiner=determiner,
                    adjectives=() if plain else adjectives(kind),
                    noun=owned_noun if determiner in POSSESSIVE else any_noun,
                    plural=letter == "p",
                    modifier=modifiers(kind) if modified else None,
                )))
    return Choice("determiner", alternatives)


@cache
def argument(kind: str, use: str = "any", modified: bool = False, role: str = "object",
             plain: bool = False) -> Choice:
    """A subject or object: a noun phrase, two joined by "and", or for humans a pronoun or name.

    use, modified, plain: as in `noun_phrase`. A subject with the use "any" may also have "no".
    """
    left, right = ("he", "she") if kind == "H" else (kind, kind)
    halves = (0, 0) if kind == "H" else (1, 2)                     # no noun twice
    both = Join(Both, left=noun_phrase(left, "definite", half=halves[0], plain=plain),
                right=noun_phrase(right, "definite", half=halves[1], plain=plain))
    alternatives = [
        (70, "noun phrase", noun_phrase(kind, use, modified, plain=plain)),
        (5, "and", both),
    ]
    if role == "subject" and use == "any":
        noun = one_of("noun", NOUNS[kind])
        no = Join(NounPhrase, determiner="no", adjectives=(), noun=noun, plural=False)
        alternatives.append((4, "no", no))
    if kind == "H":
        names = NAMES[role, "she"] + NAMES[role, "he"]
        if role == "subject":
            alternatives.append((16, "pronoun", one_pronoun(list(PRONOUNS))))
        else:
            alternatives.append((9, "pronoun", one_pronoun(["he", "she", "they"])))
        alternatives.append((8, "name", one_of("name", names)))
    return Choice("argument", alternatives)


def one_pronoun(names: list[str]) -> Choice:
    """One of the pronouns with these English subject forms."""
    return one_of("pronoun", [PRONOUNS[name] for name in names])


@cache
def prepositional(kind: str) -> Choice:
    """A prepositional phrase of a kind in lexicon.txt: place, goal, to, from or with."""
    alternatives = []
    for entry in lexicon.PREPOSITIONS:
        if entry.kind == kind:
            use = "unquantified" if kind == "with" else "place"
            alternatives.append((entry.weight, entry.english, Join(
                PrepositionalPhrase,
                english=entry.english,
                preposition=entry.german,
                case=entry.case,
                object=noun_phrase(entry.nouns, use),
            )))
    return Choice(kind, alternatives)


@cache
def modifiers(kind: str) -> Choice:
    """The modifiers after a noun: none, a relative clause, "with" or "from" after a human."""
    verbs = [verb for verb in VERBS["object"] if kind in verb.objects and "H" in verb.subjects]

    def without_subject(tense):
        return clause(tense, NOTHING, (kind,), ("none", "place"), False, "no")

    def without_object(tense):
        return Join(Clause, subject=argument("H", role="subject"), group=groups(tense),
                    negated=False, verb=one_of("verb", verbs))

    human = kind == "H"
    alternatives = [
        (82, "none", NOTHING),
        (7, "subject relative", Join(
            Relative, pronoun="who" if human else "that", clause=either_tense(without_subject))),
        (6 if human else 12, "object relative", Join(
            Relative, pronoun="whom" if human else "that", clause=either_tense(without_object))),
    ]
    if human:
        alternatives.append((6, "with", prepositional("with")))
        alternatives.append((5, "from", prepositional("from")))
    return Choice("modifier", alternatives)


# ---- Predicates

FRAMES = {"object": 48, "oblique": 15, "recipient": 10, "alone": 9,
          "place": 9, "goal": 6, "journey": 4}


@cache
def groups(tense: str, kind: str = "H", be: bool = False) -> Choice:
    """Tense, perfect and modal of a verb (or of "be") with a subject of the class `kind`."""
    alternatives = [
        (60, "simple", Leaf(Group(tense))),
        (22 if tense == "present" else 9, "perfect", Leaf(Group(tense, perfect=True))),
    ]
    if not be:
        for modal in MODALS:
            if modal != "want" or kind in "HA":                    # things do not want
                alternatives.append((7, modal, Leaf(Group(tense, modal=modal))))
    return Choice("group", alternatives)


@cache
def predicate(kind: str, negated: bool, modified: bool, located: bool = False) -> Choice:
    """{field of Clause: value} of a verb and what it governs, for subjects of the class `kind`.

    located: the clause has a place already, so the verb gets neither a place nor a goal.
    """
    frames = []
    for frame, weight in FRAMES.items():
        if located and frame in ("place", "goal", "journey"):
            continue
        verbs = []
        for verb in VERBS[frame]:
            if kind in verb.subjects:
                fields = governed(frame, verb, negated, modified, located)
                verbs.append((1, f"{frame} {verb.base}", Join(dict, verb=verb, **fields)))
        frames.append((weight, frame, Choice("verb", verbs)))
    return Choice("frame", frames)


def governed(frame: str, verb: lexicon.Verb, negated: bool, modified: bool,
             located: bool) -> dict[str, Any]:
    """{field of Clause: part} of what a verb governs in a frame."""
    if frame == "alone":
        return {}
    if frame == "place":
        return {"place": prepositional("place")}
    if frame == "goal":
        return {"goal": prepositional("goal")}
    if frame == "journey":
        return {"goal": prepositional("to")}
    alternatives = []
    for kind in verb.objects:
        if not (located and kind == "P"):
            use = "negatable" if negated else "any"
            alternatives.append((1, kind, argument(kind, use, modified)))
    fields = {"object": Choice("object", alternatives)}
    if frame == "recipient":
        return {"recipient": argument("H", "definite"), **fields}
    return fields


@cache
def copula(kind: str, passing: bool) -> Join:
    """{field of Clause: value} of "be" and an adjective. passing: only of a passing state."""
    possible = [adjective for adjective in ADJECTIVES[kind] if adjective.passing or not passing]
    return Join(dict, verb=BE, adjective=one_of("adjective", possible))


# ---- Clauses

SUBJECTS = {"H": 70, "A": 15, "V": 5, "X": 4, "T": 4, "F": 2, "P": 2}
ADJUNCTS = {"none": 42, "adverb": 18, "time": 15, "place": 16, "both": 4,
            "dated": 42, "fronted": 42, "fronted adverb": 17}
EVERYWHERE = ("none", "adverb", "time", "place", "both")           # both: place and time
SHORT = ("none", "adverb", "time")


@cache
def clause(tense: str, subject: Any = None, kinds: tuple = tuple(SUBJECTS),
           adjuncts: tuple = EVERYWHERE, modified: bool = True, negation: str = "maybe",
           question: bool = False, fields: Any = None) -> Choice:
    """Clauses of a tense: subject, group, predicate, and at most one kind of adjunct.

    subject, fields: parts that replace the usual subject and predicate. modified: noun phrases may
    have modifiers, the object only if nothing follows it. adjuncts: those allowed; a "dated" clause
    comes after a time, a "fronted" one after a place. negation: no, maybe or yes. A clause has at
    most one of "not", an adverb, and a subject with "every" or "no".
    """
    def whole(kind, negated, adjunct, predicate, plain):
        """Clauses with one class of subject, one adjunct and a predicate; plain: of "be"."""
        use = "any"
        if negated or question or "adverb" in adjunct:
            use = "unquantified"
        return Join(
            complete,
            subject=subject or argument(kind, use, modified, "subject", plain),
            group=groups(tense, kind, be=plain),
            predicate=predicate,
            adverb=ADVERB if "adverb" in adjunct else None,
            place=prepositional("place") if adjunct in ("place", "both") else None,
            time=time(tense) if adjunct in ("time", "both") else None,
            negated=negated,
        )

    def either(kind, negated):
        """Clauses with one class of subject, with a verb or with "be" and an adjective."""
        lexical, copular = [], []
        for adjunct in adjuncts:
            if negated and "adverb" in adjunct:
                continue
            placeless = adjunct in ("none", "adverb", "time", "dated")
            free = modified and adjunct not in ("time", "place", "both")
            if placeless or kind in "HA":
                verb = fields or predicate(kind, negated, free, located=not placeless)
                clauses = whole(kind, negated, adjunct, verb, False)
                lexical.append((ADJUNCTS[adjunct], adjunct, clauses))
            if placeless and not fields:
                clauses = whole(kind, negated, adjunct, copula(kind, adjunct != "none"), True)
                copular.append((ADJUNCTS[adjunct], adjunct, clauses))
        weight = 10 if kind in "HA" else 50
        return Choice("be", [
            (100 - weight, "no", Choice("adjunct", lexical)),
            (weight, "yes", Choice("adjunct", copular)),
        ])

    alternatives = []
    for kind in kinds:
        polarities = []
        if negation != "yes":
            polarities.append((84, "no", either(kind, False)))
        if negation != "no" and not question:
            polarities.append((16, "yes", either(kind, True)))
        alternatives.append((SUBJECTS[kind], kind, Choice("negated", polarities)))
    return Choice("kind", alternatives)


def complete(predicate: dict[str, Any], **fields) -> Clause:
    """The Clause of a predicate and the other fields; a place in the predicate replaces theirs."""
    return Clause(**{**fields, **predicate})


@cache
def reason(tense: str) -> Join:
    """A subordinate clause with because, although or while; in the present also with if."""
    weights = {"because": 1, "although": 1, "while": 1}
    if tense == "present":
        weights["if"] = 3
    words = [(weight, name, Leaf(CONJUNCTIONS[name])) for name, weight in weights.items()]
    return Join(Subordinate, conjunction=Choice("conjunction", words),
                clause=clause(tense, adjuncts=SHORT, modified=False))


@cache
def reporting(tense: str, nested: bool = False) -> Choice:
    """Clauses such as "he says that ..."; unless `nested`, also "he says that she believes ...".
    """
    def reported(tense):
        alternatives = [(85, "clause", clause(tense, adjuncts=SHORT))]
        if not nested:
            alternatives.append((15, "nested", reporting(tense, nested=True)))
        return Choice("that", alternatives)
    that = Join(Subordinate, conjunction=THAT, clause=either_tense(reported))
    fields = Join(dict, verb=one_of("verb", VERBS["clause"]), that=that)
    return clause(tense, None, ("H",), ("none",), False, fields=fields)


# ---- Two clauses joined

def people(pronoun: str, role: str) -> Choice:
    """A noun phrase or name that `pronoun` (he, she or they) can refer to."""
    if pronoun == "they":
        return noun_phrase("H", "unquantified", number="p")
    return Choice("argument", [
        (85, "noun phrase", noun_phrase(pronoun, "unquantified", number="s")),
        (15, "name", one_of("name", NAMES[role, pronoun])),
    ])


def resumed_object(tense: str, name: str) -> Choice:
    """A clause whose object the pronoun `name` can refer to better than to its subject."""
    others = [other for other in PRONOUNS if other != name]
    subject = Choice("argument", [
        (50, "noun phrase", people("she" if name == "he" else "he", "subject")),
        (50, "pronoun", one_pronoun(others)),
    ])
    verbs = [verb for verb in VERBS["object"] if "H" in verb.subjects and "H" in verb.objects]
    meets = Join(dict, verb=one_of("verb", verbs), object=people(name, "object"))
    return clause(tense, subject, ("H",), ("none",), False, "no", fields=meets)


@cache
def coordination(tense: str) -> Choice:
    """Two clauses whose order is recognizable.

    The second has a pronoun for the subject or the object of the first, or a negation. No other
    subject or object of the first clause fits the pronoun better.
    """
    conjunction = Choice("conjunction", [(2, "and", Leaf(AND)), (1, "but", Leaf(BUT))])
    subjects, objects = [], []
    for name in ("he", "she", "they"):
        second = clause(tense, Leaf(PRONOUNS[name]), ("H",), SHORT, False)
        resumed = {"conjunction": conjunction, "second": second}
        first = clause(tense, people(name, "subject"), ("H",), SHORT, False)
        subjects.append((1, name, Join(Sentence, clause=first, **resumed)))
        first = resumed_object(tense, name)
        objects.append((1, name, Join(Sentence, clause=first, **resumed)))
    nouns = noun_phrase("H", "unquantified")
    first = clause(tense, nouns, ("H",), SHORT, False, "no")
    denial = clause(tense, nouns, ("H",), ("none", "place"), False, "yes")
    return Choice("coordination", [
        (30, "denied", Join(Sentence, clause=first, conjunction=BUT, second=denial)),
        (35, "subject resumed", Choice("resumed", subjects)),
        (35, "object resumed", Choice("resumed", objects)),
    ])


# ---- Sentences

def with_reason(clause: Clause, reason: Subordinate) -> Sentence:
    """A sentence whose clause ends with a reason."""
    return Sentence(clause._replace(reason=reason))


def sentence_of(tense: str) -> Choice:
    """Sentences whose main clause has this tense."""
    front = Choice("front", [(60, "time", time(tense)), (40, "sometimes", Leaf(SOMETIMES))])
    after_adverb = clause(tense, adjuncts=("dated", "place"))
    after_place = clause(tense, kinds=("H", "A"), adjuncts=("fronted", "fronted adverb"))
    after_reason = clause(tense, adjuncts=("none", "adverb"), modified=False)
    before_reason = clause(tense, adjuncts=("none", "place"), modified=False)
    return Choice("sentence", [
        (41, "plain", Join(Sentence, clause=clause(tense))),
        (6, "that", Join(Sentence, clause=reporting(tense))),
        (5, "reason", Join(with_reason, clause=before_reason, reason=reason(tense))),
        (9, "fronted adverb", Join(Sentence, front=front, clause=after_adverb)),
        (8, "fronted place", Join(Sentence, front=prepositional("place"), clause=after_place)),
        (6, "fronted reason", Join(Sentence, front=reason(tense), clause=after_reason)),
        (13, "question", Join(Sentence, clause=clause(tense, question=True), question=True)),
        (8, "coordination", coordination(tense)),
        (4, "opening", Join(Sentence, opening=BUT, clause=clause(tense))),
    ])


@cache
def sentence() -> Choice:
    """The start of the grammar."""
    return either_tense(sentence_of)
