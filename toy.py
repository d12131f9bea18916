"""The embedded corpus: a synchronous English-German grammar.

One derivation is a tree of small records (`Sentence`, `Clause`, `NounPhrase`, ...). Every record has two readings:
`tree()` is its English constituency tree, `german()` its German words. The German is a function of the English.
The grammar below them is made of `Choice` and `Join` parts, so that sampling and counting follow the same rules.

    python toy.py --count 5                          # pairs to look at
    python toy.py --count 4500000 --write data/big   # data/big.en and data/big.de
"""
import os
import random
import sys
from bisect import bisect
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, islice
from typing import Any, Callable, Iterator, NamedTuple

import toy_lexicon as lexicon
from cli import Parser, UserError, run, whole

SHORTEST, LONGEST = 6, 20                                       # English words of a sentence, punctuation not counted
NOUNS, VERBS, ADJECTIVES = lexicon.nouns(), lexicon.verbs(), lexicon.adjectives()
DETERMINER, ARTICLE = lexicon.determiners()
BE = VERBS["adjective"][0]
MODALS = {verb.base: verb for verb in VERBS["modal"]}
HAVE = MODALS["have"]._replace(participle="had", infinitive="haben", er="hat", praeteritum="hatte")
LABELS = {"two": "CD", "three": "CD", "my": "PRP$", "his": "PRP$", "her": "PRP$", "many": "JJ"}     # else DT


class Tree(NamedTuple):
    """A constituent: its label, and its children, which are trees, or one word."""
    label: str
    children: tuple

    def __str__(self) -> str:
        return f"({self.label} {' '.join(map(str, self.children))})"


@lru_cache(maxsize=None)
def leaves(label: str, words: str) -> tuple[Tree, ...]:
    """One preterminal per word."""
    return tuple(Tree(label, (word,)) for word in words.split())


# ---- records and their two readings ----------------------------------------------------------------------------------

class Fixed(NamedTuple):
    """A word or phrase that never changes: an adverb, a part of the day, a conjunction."""
    constituent: Tree
    words: str

    def tree(self) -> Tree:
        return self.constituent

    def german(self) -> list[str]:
        return self.words.split()


class Word(NamedTuple):
    """A pronoun or a name."""
    label: str
    english: tuple[str, str]                                    # as a subject, as an object
    forms: dict[str, str]                                       # German, by case
    agreement: str                                              # 1, 3 or p
    definite = True
    modifier = None

    def tree(self, role: int = 1) -> Tree:
        return Tree("NP", leaves(self.label, self.english[role]))

    def german(self, case: str, negated: bool = False) -> list[str]:
        return [self.forms[case]]


class NounPhrase(NamedTuple):
    """Determiner, adjectives, noun; after it perhaps a prepositional phrase or a relative clause."""
    determiner: str
    adjectives: tuple
    noun: lexicon.Noun
    plural: bool
    modifier: Any = None

    @property
    def agreement(self) -> str:
        return "p" if self.plural else "3"

    @property
    def definite(self) -> bool:
        return self.determiner in ("the", "this", "my", "his", "her")

    @property
    def slot(self) -> str:
        return "p" if self.plural else self.noun.gender

    def tree(self, role: int = 1) -> Tree:
        """(NP DT JJ NN), or around it (NP (NP DT JJ NN) modifier); "a" becomes "an" before a vowel."""
        noun = leaves("NNS", self.noun.english_plural) if self.plural else leaves("NN", self.noun.english)
        words = (*(leaves("JJ", adjective.english)[0] for adjective in self.adjectives), *noun)
        determiner = DETERMINER[self.determiner, self.plural]
        if determiner == "a" and words[0].children[0][0] in "aeiou":
            determiner = "an"
        tree = Tree("NP", leaves(LABELS.get(determiner, "DT"), determiner) + words)
        if self.modifier is None:
            return tree
        modifier = self.modifier.tree(self) if isinstance(self.modifier, Relative) else self.modifier.tree()
        return Tree("NP", (tree, modifier))

    def german(self, case: str, negated: bool = False, relative: bool = False) -> list[str]:
        """The words in that case; `negated` turns ein into kein; only `relative` adds the relative clause in place."""
        article, ending = ARTICLE["no" if negated and self.determiner == "a" else self.determiner, self.slot, case]
        words = [article] if article else []
        words += [adjective.stem + ending for adjective in self.adjectives]
        words.append(lexicon.noun_form(self.noun, self.plural, case))
        if isinstance(self.modifier, PrepositionalPhrase):
            words += self.modifier.german()
        return words


class Both(NamedTuple):
    """Two noun phrases joined by "and"."""
    left: NounPhrase
    right: NounPhrase
    agreement = "p"
    modifier = None

    @property
    def definite(self) -> bool:
        return self.left.definite

    def tree(self, role: int = 1) -> Tree:
        return Tree("NP", (self.left.tree(), *leaves("CC", "and"), self.right.tree()))

    def german(self, case: str, negated: bool = False) -> list[str]:
        return [*self.left.german(case), "und", *self.right.german(case)]


class PrepositionalPhrase(NamedTuple):
    """A preposition and its noun phrase; the German one governs a case and contracts with the article (im, zum)."""
    english: str
    preposition: str
    case: str
    object: Any

    def tree(self) -> Tree:
        return Tree("PP", (*leaves("IN", self.english), self.object.tree()))

    def german(self) -> list[str]:
        words = self.object.german(self.case)
        contracted = lexicon.CONTRACTIONS.get((self.preposition, words[0]))
        return [contracted, *words[1:]] if contracted else [self.preposition, *words]


class Group(NamedTuple):
    """Tense, perfect and modal of a clause. The perfect of the past is the pluperfect; a modal excludes the perfect."""
    tense: str
    perfect: bool = False
    modal: str = ""


class Clause(NamedTuple):
    """A clause. A relative clause lacks its subject or its object (None)."""
    subject: Any
    group: Group
    negated: bool
    verb: lexicon.Verb
    recipient: Any = None
    object: Any = None
    adjective: Any = None
    goal: Any = None
    that: Any = None                                            # the Subordinate that the verb governs
    adverb: Any = None                                          # often, always, sometimes
    place: Any = None
    time: Any = None
    reason: Any = None                                          # the Subordinate with because, although, ...

    def tree(self, agreement: str = "") -> Tree:
        return Tree("S", tuple(english_clause(self, agreement)))


class Subordinate(NamedTuple):
    """A conjunction and its clause; in German between commas, with the finite verb at the end."""
    conjunction: Fixed
    clause: Clause

    def tree(self) -> Tree:
        return Tree("SBAR", (self.conjunction.constituent, self.clause.tree()))

    def german(self) -> list[str]:
        return [",", self.conjunction.words, *german_clause(self.clause, "final"), ","]


class Relative(NamedTuple):
    """A relative clause with its English pronoun."""
    pronoun: str
    clause: Clause

    def tree(self, antecedent: NounPhrase) -> Tree:
        pronoun = Tree("WHNP", leaves("WP" if self.pronoun != "that" else "WDT", self.pronoun))
        return Tree("SBAR", (pronoun, self.clause.tree(antecedent.agreement)))

    def german(self, antecedent: NounPhrase) -> list[str]:
        """The pronoun has gender and number of the antecedent, and the case of its own role."""
        case = "nom" if self.clause.subject is None else self.clause.verb.case
        pronoun = lexicon.RELATIVE[case, antecedent.slot]
        return [",", pronoun, *german_clause(self.clause, "final", agreement=antecedent.agreement), ","]


class Sentence(NamedTuple):
    """A clause; perhaps with something before it, as a question, or joined with a second clause."""
    clause: Clause
    front: Any = None                                           # adverb, prepositional phrase or subordinate clause
    question: bool = False
    opening: Any = None                                         # "But" that begins a sentence
    conjunction: Any = None
    second: Any = None

    def tree(self) -> Tree:
        nodes = english_clause(self.clause, question=self.question)
        if self.second:
            comma = leaves(",", ",")[0]
            nodes = [Tree("S", tuple(nodes)), comma, self.conjunction.constituent, self.second.tree()]
        if self.front:
            front = self.front.tree()
            nodes = [front, *(() if front.label == "ADVP" else leaves(",", ",")), *nodes]
        if self.opening:
            nodes.insert(0, self.opening.constituent)
        return Tree("S", (*nodes, *leaves(".", "?" if self.question else ".")))

    def german(self) -> list[str]:
        """The finite verb comes second: after whatever stands in front, or first in a question."""
        words = self.opening.german() if self.opening else []
        if self.front:
            words += self.front.german()
        words += german_clause(self.clause, "inverted" if self.front or self.question else "main")
        if self.second:
            comma = [","] if self.conjunction.words == "aber" else []
            words += [*comma, self.conjunction.words, *german_clause(self.second, "main")]
        return words + ["?" if self.question else "."]


# ---- English: the chain of verbs and the clause ----------------------------------------------------------------------

def english_verbs(clause: Clause, agreement: str, question: bool) -> list[tuple[str, str]]:
    """[(label, word), ...] from the finite verb down; "not" follows it. A form of "do" helps where it must."""
    group, verb = clause.group, clause.verb
    past, third = group.tense == "past", agreement == "3"
    finite, auxiliary, rest = verb, verb is BE, []
    if group.perfect:
        finite, auxiliary, rest = HAVE, True, [("VBN", verb.participle)]
    elif group.modal:
        finite, auxiliary = MODALS[group.modal], group.modal == "can"
        rest = [("VB", verb.base)] if auxiliary else [("TO", "to"), ("VB", verb.base)]
    if (clause.negated or question) and not auxiliary:
        rest.insert(0, ("VB", finite.base))
        word, auxiliary = "did" if past else "does" if third else "do", True
    elif finite is BE:
        word = {"1": "was", "3": "was", "p": "were"}[agreement] if past else {"1": "am", "3": "is", "p": "are"}[agreement]
    else:
        word = finite.past if past else finite.third if third else finite.base
    label = "VBD" if past else "VBZ" if third else "VBP"
    if auxiliary and (finite is not BE or question):
        label = "AUX"
    if clause.negated and word == "can":
        return [(label, "cannot"), *rest]
    return [(label, word), *([("RB", "not")] if clause.negated else []), *rest]


def english_clause(clause: Clause, agreement: str = "", question: bool = False) -> list[Tree]:
    """The constituents directly below S. An adverb stands after a finite auxiliary or be, before another finite verb."""
    verb, nodes = clause.verb, []
    if verb.particle and not clause.object:                     # wakes up; and what is left of "that he waits for"
        nodes += leaves("PRT", verb.particle)
    if clause.object:
        nodes = [clause.object.tree()]
        if verb.particle:
            nodes = [Tree("PP", (*leaves("IN", verb.particle), *nodes))]
        if clause.recipient:
            nodes.insert(0, clause.recipient.tree())
    if clause.adjective:
        nodes.append(Tree("ADJP", leaves("JJ", clause.adjective.english)))
    nodes += [part.tree() for part in (clause.goal, clause.place, clause.time, clause.that, clause.reason) if part]
    subject = [clause.subject.tree(0)] if clause.subject else []
    chain = english_verbs(clause, clause.subject.agreement if clause.subject else agreement, question)
    adverb = [clause.adverb.constituent] if clause.adverb else []
    for label, word in chain[:0:-1]:                            # from the inmost verb out to the one after the finite
        nodes.insert(0, leaves(label, word)[0])
        if label != "RB":
            nodes = [Tree("VP", tuple(nodes))]
    finite = leaves(*chain[0])[0]
    if question:
        return [finite, *subject, *adverb, *nodes]
    if finite.label == "AUX" or verb is BE:
        return [*subject, Tree("VP", (finite, *adverb, *nodes))]
    return [*subject, *adverb, Tree("VP", (finite, *nodes))]


# ---- German: one clause, three orders --------------------------------------------------------------------------------

def german_verbs(clause: Clause, agreement: str, final: bool) -> tuple[str, list[str]]:
    """(finite verb, what stands at the end of the clause without it). A separable prefix leaves a finite verb
    unless the clause is verb-final."""
    group, verb = clause.group, clause.verb
    past = group.tense == "past"
    if group.perfect:
        return lexicon.verb_form(BE if verb.auxiliary == "sein" else HAVE, past, agreement), [verb.partizip]
    if group.modal:
        return lexicon.verb_form(MODALS[group.modal], past, agreement), [verb.prefix + verb.infinitive]
    finite = lexicon.verb_form(verb, past, agreement)
    if final:
        return verb.prefix + finite, []
    return finite, [verb.prefix] if verb.prefix else []


def german_clause(clause: Clause, order: str, agreement: str = "") -> list[str]:
    """The words of a clause in the order "main" (subject, verb), "inverted" (verb, subject) or "final" (verb last).

    Between verb and end: recipient, pronoun, time, adverb, definite object, nicht, place, other object, prepositional
    object, goal or predicate. After the end: the object's relative clause, and subordinate clauses. Negation is kein
    where the object is indefinite, else nicht.
    """
    verb, subject, object_ = clause.verb, clause.subject, clause.object
    finite, end = german_verbs(clause, subject.agreement if subject else agreement, order == "final")
    words = []
    if subject:
        words = subject.german("nom")
        if isinstance(subject.modifier, Relative):
            words += subject.modifier.german(subject)
    words = [*words, finite] if order == "main" else [finite, *words] if order == "inverted" else words
    before, after, tail = [], [], []                            # objects before nicht and after it; what follows the end
    no = clause.negated and object_ is not None and not object_.definite and not verb.preposition
    if clause.recipient:
        words += clause.recipient.german("dat")
    if object_:
        part = object_.german(verb.case, no)
        if verb.preposition:
            after += PrepositionalPhrase("", verb.preposition, verb.case, object_).german()
        elif isinstance(object_, Word):
            words += part
        elif object_.definite:
            before += part
        else:
            after += part
        if isinstance(object_.modifier, Relative):
            tail = object_.modifier.german(object_)
    for part in (clause.time, clause.adverb):
        if part:
            words += part.german()
    words += before
    if clause.negated and not no:
        words.append("nicht")
    if clause.place:
        words += clause.place.german()
    if clause.goal:
        after += clause.goal.german()
    if clause.adjective:
        after.append(clause.adjective.german)
    words += after + end
    if order == "final":
        words.append(finite)
    for part in (clause.that, clause.reason):
        if part:
            tail = tail + part.german()
    return words + tail


# ---- grammar: parts that can be sampled and counted ------------------------------------------------------------------

class Leaf:
    """One value, and how many English words it makes."""

    def __init__(self, value: Any, words: int = 0):
        self.value, self.lengths = value, {words: 1}

    def sample(self, uniform: Callable[[], float]) -> Any:
        return self.value


class Join:
    """`make(...)` of one value of every part, plus `words` English words. Counts multiply, lengths add."""

    def __init__(self, make: Callable, *parts, words: int = 0):
        self.make, self.parts, self.lengths = make, parts, {words: 1}
        for part in parts:
            lengths: dict[int, int] = {}
            for one, count in self.lengths.items():
                for other, times in part.lengths.items():
                    lengths[one + other] = lengths.get(one + other, 0) + count * times
            self.lengths = lengths

    def sample(self, uniform: Callable[[], float]) -> Any:
        return self.make(*[part.sample(uniform) for part in self.parts])


class Choice:
    """One of the alternatives `(weight, label, part)`. Counts add. Alternatives that are None or impossible are left out."""

    def __init__(self, name: str, *alternatives):
        alternatives = [a for a in alternatives if a and a[2].lengths]
        self.name, self.labels, self.parts = name, [a[1] for a in alternatives], [a[2] for a in alternatives]
        self.bounds = list(accumulate(a[0] for a in alternatives))
        self.lengths: dict[int, int] = {}
        for part in self.parts:
            for words, count in part.lengths.items():
                self.lengths[words] = self.lengths.get(words, 0) + count

    def sample(self, uniform: Callable[[], float]) -> Any:
        return self.parts[bisect(self.bounds, uniform() * self.bounds[-1])].sample(uniform)


def one_of(name: str, values, words: int = 0) -> Choice:
    """A Choice among values of equal weight; `words` English words each."""
    return Choice(name, *((1, getattr(value, "english", value), Leaf(value, words)) for value in values))


def fixed(label: str, english: str, german: str) -> Fixed:
    """An adverb or a conjunction."""
    return Fixed(Tree(label, leaves("RB", english)) if label == "ADVP" else leaves(label, english)[0], german)


NOTHING = Leaf(None)
SINGULAR = {"the": 34, "a": 24, "this": 6, "every": 5, "my": 5, "his": 4, "her": 4}
PLURAL = {"the": 16, "a": 12, "this": 4, "my": 3, "his": 2, "her": 2, "many": 5, "two": 5, "three": 4}
DEFINITE = ("the", "this", "my", "his", "her")
PRONOUNS = {forms[0]: Word("PRP", tuple(forms[:2]), dict(zip(lexicon.CASES, forms[2:])), forms[5])
            for forms in map(str.split, lexicon.PRONOUNS.strip().split("\n"))}
NAMES = [Word("NNP", (name, name), dict.fromkeys(lexicon.CASES, name), "3") for name in lexicon.NAMES.split()]
NAMES = {"she": NAMES[:3], "he": NAMES[3:], "H": NAMES}
ADVERB = one_of("adverb", [fixed("ADVP", *pair) for pair in lexicon.ADVERBS.items()], 1)
CONJUNCTIONS = {english: fixed("IN", english, german) for english, german in lexicon.CONJUNCTIONS.items()}
THAT, AND, BUT = fixed("IN", "that", "dass"), fixed("CC", "and", "und"), fixed("CC", "but", "aber")


@lru_cache(maxsize=None)
def noun_phrase(kind: str, use: str = "any", level: int = 0, number: str = "sp") -> Choice:
    """Noun phrases of the class `kind`.

    `use`: any determiner, "unquantified" (all but every), only "definite" ones, "negatable" (definite, or a: what may stand in a negated predicate),
    or "place" (one place, mostly with "the"). `level` 1 allows a modifier. `number`: s, p or both.
    """
    few = {"unquantified": [name for name in (*SINGULAR, *PLURAL) if name != "every"], "definite": DEFINITE, "negatable": (*DEFINITE, "a"), "place": ("the", "a", "this", "my", "his", "her")}
    wide = "H" if kind in ("he", "she") else kind
    adjective = one_of("adjective", ADJECTIVES["T" if kind == "W" else wide if wide in "HATFXV" else "P"], 1)
    two = Join(lambda one, other: (one, other), adjective, adjective)
    adjectives = Choice("adjectives", (62, "none", Leaf(())), (35, "one", Join(lambda one: (one,), adjective)),
                        (3, "two", two))
    noun, modifier = one_of("noun", NOUNS[kind], 1), modifiers(kind) if level else NOTHING

    def phrases(weights, plural):
        allowed = {name: weight for name, weight in weights.items() if use == "any" or name in few[use]}
        if use == "place":
            allowed["the"] *= 4
        return [(weight, f"{name} {'plural' if plural else 'singular'}",
                 Join(NounPhrase, Leaf(name, 0 if plural and name == "a" else 1), adjectives, noun, Leaf(plural), modifier))
                for name, weight in allowed.items()]
    return Choice("determiner", *(phrases(SINGULAR, False) if "s" in number else ()),
                  *(phrases(PLURAL, True) if "p" in number and use != "place" else ()))


@lru_cache(maxsize=None)
def argument(kind: str, use: str = "any", level: int = 0, role: str = "object") -> Choice:
    """A subject or object: a noun phrase, two joined by "and", and for humans pronouns and names."""
    left, right = ("he", "she") if kind == "H" else (kind, kind)
    pair = Join(Both, noun_phrase(left, "definite"), noun_phrase(right, "definite"), words=1)
    pronouns = [PRONOUNS[name] for name in (PRONOUNS if role == "subject" else ("he", "she", "they"))]
    none = Join(NounPhrase, Leaf("no", 1), Leaf(()), one_of("noun", NOUNS[kind], 1), Leaf(False))
    return Choice("argument", (70, "noun phrase", noun_phrase(kind, use, level)),
                  (5, "and", pair),
                  (3, "no", none) if role == "subject" and use == "any" else None,
                  (16 if role == "subject" else 9, "pronoun", one_of("pronoun", pronouns, 1)) if kind == "H" else None,
                  (8, "name", one_of("name", NAMES["H"], 1)) if kind == "H" else None)


@lru_cache(maxsize=None)
def prepositional(kind: str) -> Choice:
    """A prepositional phrase: a "place" (where), a "goal" (where to), "from" a place or "with" a thing."""
    def phrase(english, german, case, nouns, use="place"):
        place = noun_phrase(nouns, use)
        return Join(lambda object_: PrepositionalPhrase(english, german, case, object_), place, words=len(english.split()))
    if kind == "goal":
        return Choice("goal", (1, "to", phrase("to", "zu", "dat", "to")), (1, "into", phrase("into", "in", "acc", "into")))
    if kind == "place":
        return Choice("place", *((20 if word == "in" else 8, word, phrase(word, german, "dat", word))
                                 for word, german in lexicon.PLACES.items()),
                      *((5, word, phrase(word, german, "dat", "around")) for word, german in lexicon.AROUND.items()))
    return phrase("from", "aus", "dat", "in") if kind == "from" else phrase("with", "mit", "dat", "W", "any")


@lru_cache(maxsize=None)
def modifiers(kind: str) -> Choice:
    """What may follow a noun of that class: a relative clause, and for humans "with" or "from"."""
    verb = [verb for verb in VERBS["object"] if kind in verb.objects and "H" in verb.subjects]
    lacks_object = [Join(lambda subject, group, verb: Clause(subject, group, False, verb),
                         argument("H", role="subject"), group(tense), one_of("verb", verb, 1)) for tense in ("present", "past")]
    lacks_subject = [clause(tense, Leaf(None), (kind,), ("none", "place"), 0, "no") for tense in ("present", "past")]
    def relative(pronoun, clauses):
        return Join(lambda clause: Relative(pronoun, clause), Choice("tense", (1, "present", clauses[0]), (1, "past", clauses[1])), words=1)
    return Choice("modifier", (78, "none", NOTHING),
                  (7, "subject relative", relative("who" if kind == "H" else "that", lacks_subject)),
                  (5 if kind == "H" else 12, "object relative", relative("whom" if kind == "H" else "that", lacks_object)),
                  (6, "with", prepositional("with")) if kind == "H" else None,
                  (5, "from", prepositional("from")) if kind == "H" else None)


@lru_cache(maxsize=None)
def group(tense: str, negated: bool = False, question: bool = False, be: bool = False) -> Choice:
    """Tense, perfect and modal; the English words they add are the auxiliaries, "not" and "to"."""
    help_ = (2 if negated else 1 if question else 0) if not be else int(negated)
    can = 1 if tense == "present" else 1 + negated
    semi = 3 if question else 4 if negated else 2
    return Choice("group", (60, "simple", Leaf(Group(tense), help_)),
                  (22 if tense == "present" else 9, "perfect", Leaf(Group(tense, True), 1 + negated)),
                  *((7, modal, Leaf(Group(tense, False, modal), can if modal == "can" else semi))
                    for modal in MODALS if not be))


@lru_cache(maxsize=None)
def predicate(kind: str, negated: bool, level: int, place: bool = False) -> Choice:
    """{field of Clause: value} for a subject of the class `kind`, without the adjective frame.

    `place` leaves out the verbs that have a place or goal of their own."""
    use = "negatable" if negated else "any"

    def frame(name, make):
        verbs = [verb for verb in VERBS[name] if kind in verb.subjects]
        return Choice("verb", *((1, verb.base, make(verb, 1 + len(verb.particle.split()))) for verb in verbs))

    def with_object(verb, words, **more):
        objects = Choice("object", *((1, other, argument(other, use, level)) for other in verb.objects))
        return Join(lambda object_: {"verb": verb, "object": object_}, objects, words=words)

    def with_recipient(verb, words):
        objects = Choice("object", *((1, other, noun_phrase(other, use, level)) for other in verb.objects))
        return Join(lambda recipient, object_: {"verb": verb, "recipient": recipient, "object": object_},
                    argument("H", "definite"), objects, words=words)

    def with_field(field, part):
        return lambda verb, words: Join(lambda value: {"verb": verb, field: value}, part, words=words)
    return Choice("frame", (48, "object", frame("object", with_object)), (14, "oblique", frame("oblique", with_object)),
                  (10, "recipient", frame("recipient", with_recipient)),
                  (10, "alone", frame("alone", with_field("object", NOTHING))),
                  None if place else (9, "place", frame("place", with_field("place", prepositional("place")))),
                  None if place else (9, "goal", frame("goal", with_field("goal", prepositional("goal")))))


KINDS = {"H": 70, "A": 15, "V": 5, "X": 4, "T": 4, "F": 2, "P": 2}
ADJUNCTS = {"none": 40, "adverb": 14, "time": 16, "place": 18, "both": 6, "fronted": 40, "fronted adverb": 14}
EVERYWHERE = ("none", "adverb", "time", "place", "both")


@lru_cache(maxsize=None)
def time(tense: str) -> Choice:
    """An adverb of time or a part of the day."""
    words = [fixed("ADVP", *pair) for pair in lexicon.TIMES[tense].items()]
    parts = [Fixed(Tree("PP", (*leaves("IN", "in"), Tree("NP", (*leaves("DT", "the"), *leaves("NN", word))))), german)
             for word, german in lexicon.PARTS_OF_DAY.items()]
    return Choice("time", (2, "adverb", Choice("word", *((1, fix.words, Leaf(fix, 1)) for fix in words))),
                  (1, "part of the day", Choice("word", *((1, fix.words, Leaf(fix, 3)) for fix in parts))))


@lru_cache(maxsize=None)
def clause(tense: str, subject: Any = None, kinds: tuple = tuple(KINDS), adjuncts: tuple = EVERYWHERE, level: int = 1,
           negation: str = "maybe", question: bool = False, fields: Any = None) -> Choice:
    """Clauses of that tense. `subject` and `fields` (the predicate) replace the usual ones; `level` 1 lets noun phrases
    have modifiers, the object only where nothing follows it; negation: no, maybe, yes."""
    def joined(kind, negated, adjunct, verb_group, values):
        who = subject or argument(kind, "unquantified" if negated or question else "any", level, "subject")
        make = lambda who, group, fields, adverb, place, time: Clause(      # noqa: E731
            who, group, negated, **{"adverb": adverb, "place": place, "time": time, **fields})
        return Join(make, who, verb_group, values, ADVERB if "adverb" in adjunct else NOTHING,
                    prepositional("place") if adjunct in ("place", "both") else NOTHING,
                    time(tense) if adjunct in ("time", "both") else NOTHING)

    def lexical(kind, negated, adjunct):
        place = adjunct in ("place", "both", "fronted", "fronted adverb")
        if negated and "adverb" in adjunct or kind not in "HA" and (place or fields):
            return None
        values = fields or predicate(kind, negated, level if adjunct in ("none", "adverb") else 0, place)
        return ADJUNCTS[adjunct], adjunct, joined(kind, negated, adjunct, group(tense, negated, question), values)

    def copula(kind, negated, adjunct):
        if fields or adjunct not in ("none", "adverb", "time") or negated and adjunct == "adverb":
            return None
        values = Join(lambda adjective: {"verb": BE, "adjective": adjective}, one_of("adjective", ADJECTIVES[kind], 1), words=1)
        return ADJUNCTS[adjunct], adjunct, joined(kind, negated, adjunct, group(tense, negated, question, True), values)

    def either(kind, negated):
        return Choice("copula", (90 if kind in "HA" else 50, "no", Choice("adjunct", *(lexical(kind, negated, a) for a in adjuncts))),
                      (10 if kind in "HA" else 50, "yes", Choice("adjunct", *(copula(kind, negated, a) for a in adjuncts))))
    return Choice("subject", *((KINDS[kind], kind, Choice(
        "negation", (84, "no", either(kind, False)) if negation != "yes" else None,
        (16, "yes", either(kind, True)) if negation != "no" and not question else None)) for kind in kinds))


def either_tense(part: Callable[[str], Any]) -> Choice:
    """`part` of the present or of the past."""
    return Choice("tense", (1, "present", part("present")), (1, "past", part("past")))


@lru_cache(maxsize=None)
def reason(tense: str) -> Join:
    """A subordinate clause with because, although, while, or in the present if."""
    conjunctions = [fix for word, fix in CONJUNCTIONS.items() if tense == "present" or word != "if"]
    choice = Choice("conjunction", *((1, fix.words, Leaf(fix, 1)) for fix in conjunctions))
    return Join(Subordinate, choice, clause(tense, level=0))


@lru_cache(maxsize=None)
def reporting(tense: str, depth: int = 1) -> Choice:
    """He says that ...; with `depth` 1 perhaps: he says that she believes that ..."""
    inner = either_tense(lambda tense: Choice("that", (80, "clause", clause(tense)),
                                              (20, "nested", reporting(tense, 0)) if depth else None))
    that = Join(lambda inner: Subordinate(THAT, inner), inner, words=1)
    verbs = Choice("verb", *((1, verb.base, Join(lambda that, verb=verb: {"verb": verb, "that": that}, that, words=1))
                             for verb in VERBS["clause"]))
    return clause(tense, None, ("H",), ("none",), 0, "maybe", False, verbs)


@lru_cache(maxsize=None)
def coordination(tense: str) -> Choice:
    """Two clauses whose order shows: the second resumes the subject or object of the first by a pronoun, or denies."""
    plain = ("none", "adverb", "time", "place")
    resumed = []
    for pronoun in ("he", "she", "they"):
        if pronoun == "they":
            people = noun_phrase("H", "any", 0, "p")
        else:
            people = Choice("argument", (85, "noun phrase", noun_phrase(pronoun, "any", 0, "s")),
                            (15, "name", one_of("name", NAMES[pronoun], 1)))
        others = [PRONOUNS[name] for name in PRONOUNS if name != pronoun]
        other = {"he": noun_phrase("she", "any", 0, "s"), "she": noun_phrase("he", "any", 0, "s"),
                 "they": noun_phrase("H", "any", 0, "s")}[pronoun]
        other = Choice("argument", (50, "noun phrase", other), (50, "pronoun", one_of("pronoun", others, 1)))
        meets = Choice("verb", *((1, verb.base, Join(lambda object_, verb=verb: {"verb": verb, "object": object_}, people, words=1))
                                 for verb in VERBS["object"] if "H" in verb.subjects and "H" in verb.objects))
        second = clause(tense, Leaf(PRONOUNS[pronoun], 1), ("H",), plain, 0)
        conjunction = Choice("conjunction", (2, "and", Leaf(AND, 1)), (1, "but", Leaf(BUT, 1)))
        for name, first in (("subject resumed", clause(tense, people, ("H",), plain, 0)),
                            ("object resumed", clause(tense, other, ("H",), ("none",), 0, "no", False, meets))):
            resumed.append((40, name, Join(lambda first, conjunction, second: Sentence(
                first, conjunction=conjunction, second=second), first, conjunction, second)))
    nouns = noun_phrase("H", "unquantified")
    contrast = Join(lambda first, second: Sentence(first, conjunction=BUT, second=second),
                    clause(tense, nouns, ("H",), plain, 0, "no"), clause(tense, nouns, ("H",), ("none", "place"), 0, "yes"),
                    words=1)
    return Choice("coordination", *resumed, (60, "contrast", contrast))


@lru_cache(maxsize=None)
def sentence() -> Choice:
    """The start of the grammar."""
    def shapes(tense):
        fronted = lambda front, clause: Sentence(clause, front)             # noqa: E731
        adverb = Choice("front", (60, "time", time(tense)), (40, "sometimes", Leaf(fixed("ADVP", "sometimes", "manchmal"), 1)))
        return Choice("sentence", (34, "plain", Join(Sentence, clause(tense))),
                      (8, "that", Join(Sentence, reporting(tense))),
                      (8, "reason", Join(lambda clause, reason: Sentence(clause._replace(reason=reason)),
                                         clause(tense, adjuncts=("none", "place"), level=0), reason(tense))),
                      (9, "fronted adverb", Join(fronted, adverb, clause(tense, adjuncts=("none", "place")))),
                      (9, "fronted place", Join(fronted, prepositional("place"),
                                                clause(tense, kinds=("H", "A"), adjuncts=("fronted", "fronted adverb")))),
                      (8, "fronted reason", Join(fronted, reason(tense), clause(tense, adjuncts=("none", "adverb"), level=0))),
                      (11, "question", Join(lambda clause: Sentence(clause, question=True), clause(tense, question=True))),
                      (10, "coordination", coordination(tense)),
                      (4, "opening", Join(lambda clause: Sentence(clause, opening=BUT), clause(tense), words=1)))
    return either_tense(shapes)


def count_derivations() -> int:
    """How many derivations have SHORTEST to LONGEST English words, counted from the grammar."""
    return sum(count for words, count in sentence().lengths.items() if SHORTEST <= words <= LONGEST)


# ---- examples, corpora, command --------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Features:
    """What probing asks for. Of two coordinated clauses, tense and numbers are the first one's."""
    tense: str                                                  # of the main clause: present or past (perfect: of "have")
    subject: str                                                # number of the main clause's subject: sg or pl
    object: str | None                                          # of its direct object; None without one
    depth: int                                                  # labels from S down to the deepest word
    top: tuple[str, ...]                                        # labels directly below S
    coordination: bool                                          # two main clauses
    words: int                                                  # punctuation not counted


@dataclass(frozen=True)
class Example:
    """A sentence pair with the tree of its English side."""
    english: str
    german: str
    tree: Tree
    features: Features


def collect(tree: Tree, words: list[str]) -> int:
    """Appends the words below `tree` to `words`; returns the number of labels on the longest path."""
    depth = 0
    for child in tree.children:
        if child.__class__ is str:
            words.append(child)
        else:
            depth = max(depth, collect(child, words))
    return depth + 1


def text(words: list[str]) -> str:
    """The words as ordinary text: no space before punctuation, no comma twice, a capital at the start."""
    line = " ".join(words).removeprefix(", ").replace(" , ,", " ,").replace(" , ,", " ,")
    line = line.replace(" , .", ".").replace(" , ?", "?").replace(" ,", ",").replace(" .", ".").replace(" ?", "?")
    return line[0].upper() + line[1:]


def number(phrase: Any) -> str:
    """The number of a noun phrase or pronoun: sg or pl."""
    return "pl" if phrase.agreement == "p" else "sg"


def example(sentence: Sentence) -> Example:
    """Both readings of one derivation, and its features."""
    tree, words, clause = sentence.tree(), [], sentence.clause
    depth = collect(tree, words)
    direct = number(clause.object) if clause.object and not clause.verb.particle else None
    features = Features(clause.group.tense, number(clause.subject), direct, depth,
                        tuple([child.label for child in tree.children]), sentence.second is not None,
                        len(words) - words.count(",") - 1)
    return Example(text(words), text(sentence.german()), tree, features)


def derive(rng: random.Random) -> Example:
    """One random derivation of SHORTEST to LONGEST English words."""
    start = sentence()
    while True:
        found = example(start.sample(rng.random))
        if SHORTEST <= found.features.words <= LONGEST:
            return found


def distinct(seed: int) -> Iterator[Example]:
    """Endless examples, no English sentence twice; the same ones for the same seed on any machine."""
    rng, seen = random.Random(seed), set()
    while True:
        found = derive(rng)
        if found.english not in seen:
            seen.add(found.english)
            yield found


def corpus(count: int, seed: int = 1) -> list[Example]:
    """`count` examples with distinct English sentences."""
    return list(islice(distinct(seed), count))


def splits(train: int = 50_000, valid: int = 1_000, test: int = 1_000, seed: int = 1) -> dict[str, list[Example]]:
    """{"train": [...], "valid": [...], "test": [...]}, no English sentence twice in all three together.

    Test and validation are drawn first: they stay the same when `train` changes.
    """
    stream = distinct(seed)
    parts = {"test": list(islice(stream, test)), "valid": list(islice(stream, valid)), "train": list(islice(stream, train))}
    return {name: parts[name] for name in ("train", "valid", "test")}


def write(prefix: str, count: int, seed: int = 1) -> None:
    """Writes `count` pairs to PREFIX.en and PREFIX.de, line by line, with repetitions (a set of all lines would need
    the memory). Both files appear when they are whole. Raises UserError where they cannot be written."""
    rng, names = random.Random(seed), [f"{prefix}.en", f"{prefix}.de"]
    parts = [f"{name}.{os.getpid()}.part" for name in names]
    try:
        with open(parts[0], "w", encoding="utf-8", newline="\n") as english, \
                open(parts[1], "w", encoding="utf-8", newline="\n") as german:
            for _ in range(count):
                pair = derive(rng)
                english.write(pair.english + "\n")
                german.write(pair.german + "\n")
        for part, name in zip(parts, names):
            os.replace(part, name)
    except OSError as error:
        raise UserError(f"--write {prefix}: {error.strerror}: name a prefix in a folder that exists and can be written")
    finally:
        for part in parts:
            if os.path.exists(part):
                os.remove(part)


def parser() -> Parser:
    """The arguments of `python toy.py`."""
    flags = Parser(prog="toy.py", description="Prints or writes pairs of the embedded English-German corpus.")
    flags.add_argument("--count", type=whole(1), default=5, help="number of sentence pairs")
    flags.add_argument("--seed", type=whole(0), default=1, help="the same seed gives the same pairs")
    flags.add_argument("--trees", action="store_true", help="print the English tree and the features as well")
    flags.add_argument("--write", metavar="PREFIX", help="write PREFIX.en and PREFIX.de instead of printing; lines may repeat")
    return flags


def command(args) -> None:
    """Prints distinct pairs, or writes a corpus."""
    if args.write is not None:
        return write(args.write, args.count, args.seed)
    for pair in islice(distinct(args.seed), args.count):
        print(pair.english, pair.german, *((pair.tree, pair.features) if args.trees else ()), "", sep="\n")


def main(argv=None) -> int:
    """The command line; returns the exit status."""
    return run(command, parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
