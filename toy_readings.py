"""The records of a derivation and their two readings: the English constituency tree and the German words.

A derivation of the embedded corpus (toy.py) is a tree of the records below. `tree()` gives a record's English
constituent and `german()` its German words; both read the same fields, so that the German is a function of the English.
"""
from functools import lru_cache
from typing import Any, NamedTuple

import toy_lexicon as lexicon

VERBS = lexicon.verbs()
DETERMINER, ARTICLE = lexicon.determiners()
BE = VERBS["adjective"][0]
MODALS = {verb.base: verb for verb in VERBS["modal"]}
HAVE = MODALS["have"]._replace(participle="had", infinitive="haben", er="hat", praeteritum="hatte")
LABELS = {"two": "CD", "three": "CD", "my": "PRP$", "his": "PRP$", "her": "PRP$", "many": "JJ"}     # else DT
AM, WAS = {"1": "am", "3": "is", "p": "are"}, {"1": "was", "3": "was", "p": "were"}                 # by agreement


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

    def german(self, case: str, negated: bool = False) -> list[str]:
        """The words in that case; `negated` turns ein into kein. A relative clause is left to the clause around."""
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
            nodes = [Tree("S", tuple(nodes)), *leaves(",", ","), self.conjunction.constituent, self.second.tree()]
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
        word = (WAS if past else AM)[agreement]
    else:
        word = finite.past if past else finite.third if third else finite.base
    label = "VBD" if past else "VBZ" if third else "VBP"
    if auxiliary and (finite is not BE or question):
        label = "AUX"
    if clause.negated and word == "can":
        return [(label, "cannot"), *rest]
    return [(label, word), *([("RB", "not")] if clause.negated else []), *rest]


def english_clause(clause: Clause, agreement: str = "", question: bool = False) -> list[Tree]:
    """The constituents directly below S. An adverb follows a finite auxiliary or be, and precedes any other verb."""
    verb, nodes = clause.verb, []
    if verb.particle and not clause.object:                     # wakes up
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

    After the subject: pronouns, recipient or name, time, adverb, definite object, nicht, place, other object,
    prepositional object, goal or predicate, end of the verb. After all that, the object's relative clause and
    subordinate clauses. A pronoun passes the subject of an inverted clause, unless that is a pronoun or name itself or
    the pronoun is "sie", which would be read as the subject.
    """
    verb, subject, object_ = clause.verb, clause.subject, clause.object
    finite, end = german_verbs(clause, subject.agreement if subject else agreement, order == "final")
    kein = clause.negated and object_ is not None and not object_.definite and not verb.preposition
    first = subject.german("nom") if subject else []
    if subject and isinstance(subject.modifier, Relative):
        first += subject.modifier.german(subject)
    pronouns, words, definite, later, tail = [], [], [], [], []
    if clause.recipient:
        (pronouns if is_pronoun(clause.recipient) else words).extend(clause.recipient.german("dat"))
    if object_ and verb.preposition:
        later += PrepositionalPhrase("", verb.preposition, verb.case, object_).german()
    elif object_:
        place = pronouns if is_pronoun(object_) else words if isinstance(object_, Word) else \
            definite if object_.definite else later
        place.extend(object_.german(verb.case, kein))
    if object_ and isinstance(object_.modifier, Relative):
        tail = object_.modifier.german(object_)
    for part in (clause.time, clause.adverb):
        words += part.german() if part else []
    words += definite
    words += ["nicht"] if clause.negated and not kein else []
    words += clause.place.german() if clause.place else []
    later += clause.goal.german() if clause.goal else []
    later += [clause.adjective.german] if clause.adjective else []
    for part in (clause.that, clause.reason):
        tail += part.german() if part else []
    if order == "final":
        return [*first, *pronouns, *words, *later, *end, finite, *tail]
    if order == "main":
        return [*first, finite, *pronouns, *words, *later, *end, *tail]
    start = [*first, *pronouns] if isinstance(subject, Word) or pronouns == ["sie"] else [*pronouns, *first]
    return [finite, *start, *words, *later, *end, *tail]


def is_pronoun(phrase: Any) -> bool:
    """Whether a noun phrase is a pronoun, not a name."""
    return isinstance(phrase, Word) and phrase.label == "PRP"
