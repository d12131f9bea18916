"""The grammar of the embedded corpus: which derivations there are, how often each is drawn, and how many they are.

Every function below gives a part (toy_parts.py) that is sampled into the records of toy_readings.py; `sentence()` is
the start. The classes of nouns (H human, A animal, ...) are explained in toy_lexicon.py.
"""
from functools import lru_cache
from typing import Any, Callable

import toy_lexicon as lexicon
from toy_parts import Choice, Join, Leaf
from toy_readings import (BE, MODALS, VERBS, Both, Clause, Fixed, Group, NounPhrase, PrepositionalPhrase, Relative,
                          Sentence, Subordinate, Tree, Word, leaves)

TENSES = ("present", "past")
NOUNS, ADJECTIVES = lexicon.nouns(), lexicon.adjectives()


def one_of(name: str, values, words: int = 0) -> Choice:
    """A Choice among values of equal weight, of `words` English words each."""
    return Choice(name, *((1, label_of(value), Leaf(value, words)) for value in values))


def label_of(value: Any) -> str:
    """What a lexical value is called in a Choice: its English form."""
    if isinstance(value, Fixed):
        return value.words
    return value.english[0] if isinstance(value, Word) else getattr(value, "english", getattr(value, "base", value))


def fixed(label: str, english: str, german: str) -> Fixed:
    """An adverb (ADVP) or a conjunction (IN or CC)."""
    return Fixed(Tree(label, leaves("RB", english)) if label == "ADVP" else leaves(label, english)[0], german)


# ---- noun phrases ----------------------------------------------------------------------------------------------------

NOTHING = Leaf(None)
SINGULAR = {"the": 34, "a": 24, "this": 6, "every": 5, "my": 5, "his": 4, "her": 4}                 # weights
PLURAL = {"the": 16, "a": 12, "this": 4, "my": 3, "his": 2, "her": 2, "many": 5, "two": 5, "three": 4}
PLACE = {"the": 76, "a": 10, "this": 5, "my": 3, "his": 3, "her": 3}
DEFINITE = ("the", "this", "my", "his", "her")
USES = {"any": (*SINGULAR, *PLURAL), "unquantified": tuple(name for name in (*SINGULAR, *PLURAL) if name != "every"),
        "definite": DEFINITE, "negatable": (*DEFINITE, "a")}
PRONOUNS = {forms[0]: Word("PRP", tuple(forms[:2]), dict(zip(lexicon.CASES, forms[2:])), forms[5])
            for forms in map(str.split, lexicon.PRONOUNS.strip().split("\n"))}
NAMES = {(role, pronoun): [Word("NNP", (name, name), dict.fromkeys(lexicon.CASES, name), "3") for name in names.split()]
         for role, table in lexicon.NAMES.items() for pronoun, names in table.items()}


def rank(adjective: lexicon.Adjective) -> int:
    """Where an adjective stands among others: size after quality, then age, then color. So German needs no comma."""
    return next((i for i, words in enumerate(lexicon.RANKS, 1) if adjective.english in words.split()), 0)


@lru_cache(maxsize=None)
def noun_phrase(kind: str, use: str = "any", level: int = 0, number: str = "sp", half: int = 0,
                plain: bool = False) -> Choice:
    """Noun phrases of the class `kind`.

    `use`: any determiner, "unquantified" (all but every), only "definite" ones, "negatable" (definite, or a: what may
    stand in a negated predicate), or "place" (one place, mostly with "the"). `level` 1 allows a modifier. `number`: s,
    p or both. `half`: every other noun, from the first (1) or second (2). `plain`: no adjectives.
    """
    wide = {"he": "H", "she": "H", "W": "T"}.get(kind, kind if kind in "HATFXV" else "P")
    adjective = one_of("adjective", ADJECTIVES[wide], 1)
    pairs = Choice("pair", *((1, f"{one.english} {other.english}", Leaf((one, other), 2)) for one in ADJECTIVES[wide]
                             for other in ADJECTIVES[wide] if rank(one) < rank(other)))
    adjectives = Leaf(()) if plain else Choice(
        "adjectives", (72, "none", Leaf(())), (25, "one", Join(lambda one: (one,), adjective)),
        (3, "two", pairs))
    nouns = NOUNS[kind][half - 1::2] if half else NOUNS[kind]
    owned = one_of("noun", [noun for noun in nouns if noun.english not in lexicon.UNOWNED.split()], 1)
    noun, modifier = one_of("noun", nouns, 1), modifiers(kind) if level else NOTHING

    def phrases(weights, plural):
        return [(weight, f"{name} {'plural' if plural else 'singular'}", Join(
            NounPhrase, Leaf(name, 0 if plural and name == "a" else 1), adjectives,
            owned if name in ("my", "his", "her") else noun, Leaf(plural), modifier))
            for name, weight in weights.items() if use == "place" or name in USES[use]]
    if use == "place":
        return Choice("determiner", *phrases(PLACE, False))
    return Choice("determiner", *(phrases(SINGULAR, False) if "s" in number else ()),
                  *(phrases(PLURAL, True) if "p" in number else ()))


@lru_cache(maxsize=None)
def argument(kind: str, use: str = "any", level: int = 0, role: str = "object", plain: bool = False) -> Choice:
    """A subject or object: a noun phrase, two joined by "and", and for humans pronouns and names; for subjects "no".

    `use`, `level` and `plain` as in `noun_phrase`."""
    pair = ("he", 0), ("she", 0)
    if kind != "H":
        pair = (kind, 1), (kind, 2)
    both = Join(Both, *(noun_phrase(one, "definite", half=half, plain=plain) for one, half in pair), words=1)
    no = Join(lambda noun: NounPhrase("no", (), noun, False), one_of("noun", NOUNS[kind], 1), words=1)
    subject = role == "subject"
    pronouns = [PRONOUNS[name] for name in (PRONOUNS if subject else ("he", "she", "they"))]
    return Choice("argument", (70, "noun phrase", noun_phrase(kind, use, level, plain=plain)),
                  (5, "and", both),
                  (4, "no", no) if subject and use == "any" else None,
                  (16 if subject else 9, "pronoun", one_of("pronoun", pronouns, 1)) if kind == "H" else None,
                  (8, "name", one_of("name", NAMES[role, "she"] + NAMES[role, "he"], 1)) if kind == "H" else None)


@lru_cache(maxsize=None)
def prepositional(kind: str) -> Choice:
    """A prepositional phrase: a "place", a "goal" ("to" alone: only with that preposition), "from" or "with"."""
    def phrase(weight, english, german, case, nouns, use="place"):
        return weight, english, Join(lambda object_: PrepositionalPhrase(english, german, case, object_),
                                     noun_phrase(nouns, use), words=len(english.split()))
    if kind == "place":
        return Choice("place", *(phrase(21 if english == "in" else 8, english, german, "dat", english)
                                 for english, german in lexicon.PLACES.items()),
                      *(phrase(5, english, german, "dat", "around") for english, german in lexicon.AROUND.items()))
    if kind == "from":
        return Choice("from", phrase(1, "from", "aus", "dat", "from"))
    if kind == "with":
        return Choice("with", phrase(1, "with", "mit", "dat", "W", "unquantified"))
    return Choice("goal", phrase(1, "to", "zu", "dat", "to"),
                  phrase(1, "into", "in", "acc", "into") if kind == "goal" else None)


@lru_cache(maxsize=None)
def modifiers(kind: str) -> Choice:
    """What may follow a noun of that class: a relative clause; a human noun also takes "with" or "from"."""
    human = kind in ("H", "he", "she")
    verbs = one_of("verb", [verb for verb in VERBS["object"] if kind in verb.objects and "H" in verb.subjects], 1)

    def lacks_object(tense):
        return Join(lambda subject, group, verb: Clause(subject, group, False, verb),
                    argument("H", role="subject"), groups(tense), verbs)

    def lacks_subject(tense):
        return clause(tense, Leaf(None), (kind,), ("none", "place"), 0, "no")

    def relative(pronoun, clauses):
        return Join(lambda clause: Relative(pronoun, clause), either_tense(clauses), words=1)
    return Choice("modifier", (82, "none", NOTHING),
                  (7, "subject relative", relative("who" if human else "that", lacks_subject)),
                  (6 if human else 12, "object relative", relative("whom" if human else "that", lacks_object)),
                  (6, "with", prepositional("with")) if human else None,
                  (5, "from", prepositional("from")) if human else None)


# ---- clauses ---------------------------------------------------------------------------------------------------------

KINDS = {"H": 70, "A": 15, "V": 5, "X": 4, "T": 4, "F": 2, "P": 2}                       # weights of subjects
ADJUNCTS = {"none": 42, "adverb": 18, "time": 15, "place": 16, "both": 4,
            "dated": 42, "fronted": 42, "fronted adverb": 17}
EVERYWHERE = ("none", "adverb", "time", "place", "both")
SHORT = ("none", "adverb", "time")


def either_tense(part: Callable[[str], Any]) -> Choice:
    """`part` of the present or of the past."""
    return Choice("tense", *((1, tense, part(tense)) for tense in TENSES))


@lru_cache(maxsize=None)
def groups(tense: str, kind: str = "H", negated: bool = False, question: bool = False, be: bool = False) -> Choice:
    """Tense, perfect and modal of a verb, or of "be", with a subject of the class `kind`: only H and A want things.

    The English words that they add are the auxiliaries, "not" and "to".
    """
    simple = int(negated) if be else 2 if negated else int(question)
    can = 1 + (negated and tense == "past")                     # cannot, could not
    semi = 3 if question else 4 if negated else 2               # does ... have to, does not have to, has to
    return Choice("group", (60, "simple", Leaf(Group(tense), simple)),
                  (22 if tense == "present" else 9, "perfect", Leaf(Group(tense, True), 1 + negated)),
                  *((7, modal, Leaf(Group(tense, False, modal), can if modal == "can" else semi))
                    for modal in MODALS if not be and (modal != "want" or kind in "HA")))


@lru_cache(maxsize=None)
def time(tense: str) -> Choice:
    """An adverb of time or a part of the day."""
    words = [fixed("ADVP", *pair) for pair in lexicon.TIMES[tense].items()]
    parts = [Fixed(Tree("PP", (*leaves("IN", "in"), Tree("NP", leaves("DT", "the") + leaves("NN", word)))), german)
             for word, german in lexicon.PARTS_OF_DAY.items()]
    return Choice("time", (2, "adverb", one_of("adverb of time", words, 1)),
                  (1, "part of the day", one_of("part of the day", parts, 3)))


@lru_cache(maxsize=None)
def predicate(kind: str, negated: bool, level: int, located: bool = False) -> Choice:
    """{field of Clause: value} for a subject of the class `kind`; without "be", which `copula` adds.

    `located`: a place stands elsewhere in the clause, so the verbs with a place or goal of their own are left out.
    """
    use = "negatable" if negated else "any"

    def frame(name, *fields):
        """The verbs of a frame; `fields` are (field of Clause, verb -> part)."""
        def filled(verb):
            return Join(lambda *values: {"verb": verb, **dict(zip(dict(fields), values))},
                        *(part(verb) for _, part in fields), words=1 + len(verb.particle.split()))
        verbs = [verb for verb in VERBS[name] if kind in verb.subjects]
        return Choice("verb", *((1, f"{name} {verb.base}", filled(verb)) for verb in verbs))

    def object_(verb):
        kinds = [other for other in verb.objects if not (located and other == "P")]
        return Choice("object", *((1, other, argument(other, use, level)) for other in kinds))

    def recipient(verb):
        return argument("H", "definite")

    def phrase(name):
        return lambda verb: prepositional(name)
    return Choice("frame", (48, "object", frame("object", ("object", object_))),
                  (15, "oblique", frame("oblique", ("object", object_))),
                  (10, "recipient", frame("recipient", ("recipient", recipient), ("object", object_))),
                  (9, "alone", frame("alone")),
                  None if located else (9, "place", frame("place", ("place", phrase("place")))),
                  None if located else (6, "goal", frame("goal", ("goal", phrase("goal")))),
                  None if located else (4, "journey", frame("journey", ("goal", phrase("to")))))


@lru_cache(maxsize=None)
def copula(kind: str, passing: bool) -> Join:
    """{field of Clause: value} for "be" with an adjective of the class; with `passing`, one that can come and go."""
    adjectives = [one for one in ADJECTIVES.get(kind, ()) if not passing or one.english in lexicon.PASSING.split()]
    return Join(lambda adjective: {"verb": BE, "adjective": adjective}, one_of("adjective", adjectives, 1), words=1)


@lru_cache(maxsize=None)
def clause(tense: str, subject: Any = None, kinds: tuple = tuple(KINDS), adjuncts: tuple = EVERYWHERE, level: int = 1,
           negation: str = "maybe", question: bool = False, fields: Any = None) -> Choice:
    """Clauses of that tense: subject, group, predicate, and at most one kind of adjunct.

    `subject` and `fields` (the predicate) replace the usual ones. `level` 1 lets noun phrases have modifiers, the
    object only where nothing follows it. `adjuncts`: those allowed; before a "dated" clause stands a time, before a
    "fronted" one a place. `negation`: no, maybe or yes. Of "not", an adverb, and a subject with "every" or
    "no", a clause has at most one.
    """
    def joined(kind, negated, adjunct, values, be):
        use = "unquantified" if negated or question or "adverb" in adjunct else "any"
        usual = argument(kind, use, level, "subject", be)
        return ADJUNCTS[adjunct], adjunct, Join(
            lambda subject, group, fields, adverb, place, time: Clause(
                subject, group, negated, **{"adverb": adverb, "place": place, "time": time, **fields}),
            subject or usual, groups(tense, kind, negated, question, be), values,
            ADVERB if "adverb" in adjunct else NOTHING,
            prepositional("place") if adjunct in ("place", "both") else NOTHING,
            time(tense) if adjunct in ("time", "both") else NOTHING)

    def lexical(kind, negated, adjunct):
        located = adjunct in ("place", "both", "fronted", "fronted adverb")
        if kind not in "HA" and located or negated and "adverb" in adjunct:
            return None
        usual = predicate(kind, negated, 0 if adjunct in ("time", "place", "both") else level, located)
        return joined(kind, negated, adjunct, fields or usual, False)

    def be(kind, negated, adjunct):
        if fields or adjunct not in ("none", "adverb", "time", "dated") or negated and adjunct == "adverb":
            return None
        return joined(kind, negated, adjunct, copula(kind, adjunct != "none"), True)

    def polarity(kind, negated):
        weight = 10 if kind in "HA" else 50
        return Choice("be", (100 - weight, "no", Choice("adjunct", *(lexical(kind, negated, one) for one in adjuncts))),
                      (weight, "yes", Choice("adjunct", *(be(kind, negated, one) for one in adjuncts))))
    return Choice("kind", *((KINDS[kind], kind, Choice(
        "negated", (84, "no", polarity(kind, False)) if negation != "yes" else None,
        (16, "yes", polarity(kind, True)) if negation != "no" and not question else None)) for kind in kinds))


# ---- sentences -------------------------------------------------------------------------------------------------------

ADVERB = one_of("adverb", [fixed("ADVP", *pair) for pair in lexicon.ADVERBS.items()], 1)
SOMETIMES = fixed("ADVP", "sometimes", lexicon.ADVERBS["sometimes"])
CONJUNCTIONS = {english: fixed("IN", english, german) for english, german in lexicon.CONJUNCTIONS.items()}
THAT, AND, BUT = fixed("IN", "that", "dass"), fixed("CC", "and", "und"), fixed("CC", "but", "aber")


@lru_cache(maxsize=None)
def reason(tense: str) -> Join:
    """A subordinate clause with because, although, while, or in the present if."""
    weights = {name: 3 if name == "if" else 1 for name in CONJUNCTIONS if tense == "present" or name != "if"}
    words = Choice("conjunction", *((weight, name, Leaf(CONJUNCTIONS[name], 1)) for name, weight in weights.items()))
    return Join(Subordinate, words, clause(tense, adjuncts=SHORT, level=0))


@lru_cache(maxsize=None)
def reporting(tense: str, nested: bool = False) -> Choice:
    """He says that ...; unless `nested` already, perhaps: he says that she believes that ..."""
    inner = either_tense(lambda tense: Choice("that", (85, "clause", clause(tense, adjuncts=SHORT)), None if nested else
                                              (15, "nested", reporting(tense, True))))
    that = Join(lambda inner: Subordinate(THAT, inner), inner, words=1)
    fields = Join(lambda verb, that: {"verb": verb, "that": that}, one_of("verb", VERBS["clause"], 1), that)
    return clause(tense, None, ("H",), ("none",), 0, fields=fields)


@lru_cache(maxsize=None)
def coordination(tense: str) -> Choice:
    """Two clauses whose order shows: the second resumes the subject or the object of the first by a pronoun, or denies.

    No other noun phrase in the place of subject or object of the first clause fits the pronoun better.
    """
    def pair(first, conjunction, second):
        return Join(lambda first, conjunction, second: Sentence(first, conjunction=conjunction, second=second),
                    first, conjunction, second)

    def people(pronoun, role):
        if pronoun == "they":
            return noun_phrase("H", "unquantified", 0, "p")
        return Choice("argument", (85, "noun phrase", noun_phrase(pronoun, "unquantified", 0, "s")),
                      (15, "name", one_of("name", NAMES[role, pronoun], 1)))

    def resumed(pronoun):
        second = clause(tense, Leaf(PRONOUNS[pronoun], 1), ("H",), SHORT, 0)
        conjunction = Choice("conjunction", (2, "and", Leaf(AND, 1)), (1, "but", Leaf(BUT, 1)))
        pronouns = one_of("pronoun", [PRONOUNS[name] for name in PRONOUNS if name != pronoun], 1)
        other = Choice("argument", (50, "noun phrase", people("she" if pronoun == "he" else "he", "subject")),
                       (50, "pronoun", pronouns))
        verbs = [verb for verb in VERBS["object"] if "H" in verb.subjects and "H" in verb.objects]
        meets = Join(lambda verb, object_: {"verb": verb, "object": object_}, one_of("verb", verbs, 1),
                     people(pronoun, "object"))
        return {"subject": pair(clause(tense, people(pronoun, "subject"), ("H",), SHORT, 0), conjunction, second),
                "object": pair(clause(tense, other, ("H",), ("none",), 0, "no", fields=meets), conjunction, second)}
    parts = {pronoun: resumed(pronoun) for pronoun in ("he", "she", "they")}
    nouns = noun_phrase("H", "unquantified")
    denied = pair(clause(tense, nouns, ("H",), SHORT, 0, "no"), Leaf(BUT, 1),
                  clause(tense, nouns, ("H",), ("none", "place"), 0, "yes"))
    return Choice("coordination", (30, "denied", denied), *((35, f"{role} resumed", Choice(
        "resumed", *((1, pronoun, part[role]) for pronoun, part in parts.items()))) for role in ("subject", "object")))


@lru_cache(maxsize=None)
def sentence() -> Choice:
    """The start of the grammar."""
    def shapes(tense):
        def fronted(front, **options):
            return Join(lambda front, clause: Sentence(clause, front), front, clause(tense, **options))
        adverb = Choice("front", (60, "time", time(tense)), (40, "sometimes", Leaf(SOMETIMES, 1)))
        because = Join(lambda clause, reason: Sentence(clause._replace(reason=reason)),
                       clause(tense, adjuncts=("none", "place"), level=0), reason(tense))
        return Choice("sentence", (41, "plain", Join(Sentence, clause(tense))),
                      (6, "that", Join(Sentence, reporting(tense))),
                      (5, "reason", because),
                      (9, "fronted adverb", fronted(adverb, adjuncts=("dated", "place"))),
                      (8, "fronted place", fronted(prepositional("place"), kinds=("H", "A"),
                                                   adjuncts=("fronted", "fronted adverb"))),
                      (6, "fronted reason", fronted(reason(tense), adjuncts=("none", "adverb"), level=0)),
                      (13, "question", Join(lambda clause: Sentence(clause, question=True),
                                            clause(tense, question=True))),
                      (8, "coordination", coordination(tense)),
                      (4, "opening", Join(lambda clause: Sentence(clause, opening=BUT), clause(tense), words=1)))
    return either_tense(shapes)
