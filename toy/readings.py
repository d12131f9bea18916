"""The records of a derivation and their two readings: the English tree and the German words.

A derivation of the embedded corpus is a tree of the records below. `tree()` returns a record's
English constituent and `german()` its German words. Both read the same fields, so the German is a
function of the English. A role is 0 (subject) or 1 (object), an agreement 1 (I), 3 (he) or p (we,
they), a case nom, acc or dat.
"""
from functools import cache
from typing import Any, NamedTuple

from . import lexicon
from .lexicon import BE, DO, HAVE, MODALS, Noun, Verb


class Tree(NamedTuple):
    """A constituent: its label and its children, which are trees or one word."""
    label: str
    children: tuple

    def __str__(self) -> str:
        return f"({self.label} {' '.join(map(str, self.children))})"


@cache
def leaves(label: str, words: str) -> tuple[Tree, ...]:
    """One preterminal per word."""
    return tuple(Tree(label, (word,)) for word in words.split())


# ---- Words and noun phrases

class Fixed(NamedTuple):
    """An uninflected word or phrase: an adverb, a part of the day, a conjunction."""
    constituent: Tree
    words: str

    def tree(self) -> Tree:
        return self.constituent

    def german(self) -> list[str]:
        return self.words.split()


class Word(NamedTuple):
    """A pronoun or a name."""
    label: str
    english: tuple[str, str]                   # as a subject, as an object
    forms: dict[str, str]                      # German, by case
    agreement: str                             # 1 (ich), 3 (er) or p (plural)
    definite = True
    modifier = None

    def tree(self, role: int = 1) -> Tree:
        return Tree("NP", leaves(self.label, self.english[role]))

    def german(self, case: str, negated: bool = False) -> list[str]:
        return [self.forms[case]]


class NounPhrase(NamedTuple):
    """Determiner, adjectives, noun; optionally a prepositional phrase or a relative clause."""
    determiner: str
    adjectives: tuple
    noun: Noun
    plural: bool
    modifier: Any = None

    @property
    def agreement(self) -> str:
        return "p" if self.plural else "3"

    @property
    def definite(self) -> bool:
        return self.determiner in lexicon.DEFINITE

    @property
    def slot(self) -> str:
        """The slot of its endings (lexicon.SLOTS): its gender, or the plural."""
        return "p" if self.plural else self.noun.gender

    def tree(self, role: int = 1) -> Tree:
        """(NP DT JJ NN), or (NP (NP DT JJ NN) modifier); "a" becomes "an" before a vowel."""
        determiner = lexicon.DETERMINERS[self.determiner]
        word = determiner.english_plural if self.plural else determiner.english
        nodes = [leaves("JJ", adjective.english)[0] for adjective in self.adjectives]
        if self.plural:
            nodes += leaves("NNS", self.noun.english_plural)
        else:
            nodes += leaves("NN", self.noun.english)
        if word == "a" and nodes[0].children[0][0] in "aeiou":
            word = "an"
        tree = Tree("NP", (*leaves(determiner.label, word), *nodes))
        if self.modifier is None:
            return tree
        return Tree("NP", (tree, self.modifier.tree(self.agreement)))

    def german(self, case: str, negated: bool = False) -> list[str]:
        """The words in that case, with kein for ein if `negated`.

        A relative clause is missing: `german_clause` adds it, perhaps further back.
        """
        name = "no" if negated else self.determiner
        determiner, ending = lexicon.article(name, self.slot, case)
        words = [determiner] if determiner else []
        for adjective in self.adjectives:
            words.append(adjective.stem + ending)
        words.append(lexicon.german_noun(self.noun, self.plural, case))
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
    """A preposition and its noun phrase. German contracts some with the article (im, zum)."""
    english: str
    preposition: str
    case: str
    object: Any

    def tree(self, agreement: str = "") -> Tree:
        return Tree("PP", (*leaves("IN", self.english), self.object.tree()))

    def german(self) -> list[str]:
        words = self.object.german(self.case)
        contracted = lexicon.CONTRACTIONS.get((self.preposition, words[0]))
        if contracted:
            return [contracted, *words[1:]]
        return [self.preposition, *words]


# ---- Clauses and sentences

class Group(NamedTuple):
    """Tense, perfect and modal of a clause. The perfect of the past is the pluperfect."""
    tense: str
    perfect: bool = False
    modal: str = ""                            # excludes the perfect


class Clause(NamedTuple):
    """A clause. In a relative clause the subject or the object is missing (None)."""
    subject: Any
    group: Group
    negated: bool
    verb: Verb
    recipient: Any = None
    object: Any = None
    adjective: Any = None
    goal: Any = None
    that: Any = None                           # the Subordinate that the verb governs
    adverb: Any = None                         # often, always, sometimes
    place: Any = None
    time: Any = None
    reason: Any = None                         # the Subordinate with because, although, ...

    def tree(self, agreement: str = "") -> Tree:
        return Tree("S", tuple(english_clause(self, agreement)))


class Subordinate(NamedTuple):
    """A conjunction and its clause, in German between commas and with the finite verb last."""
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

    def tree(self, agreement: str) -> Tree:
        label = "WDT" if self.pronoun == "that" else "WP"
        pronoun = Tree("WHNP", leaves(label, self.pronoun))
        return Tree("SBAR", (pronoun, self.clause.tree(agreement)))

    def german(self, antecedent: NounPhrase) -> list[str]:
        """The pronoun has gender and number of the antecedent and the case of its own role."""
        case = "nom" if self.clause.subject is None else self.clause.verb.case
        pronoun = lexicon.ENDINGS["relative", case, antecedent.slot]
        words = german_clause(self.clause, "final", antecedent.agreement)
        return [",", pronoun, *words, ","]


class Sentence(NamedTuple):
    """A clause; optionally a question, with something in front, or joined with a second clause."""
    clause: Clause
    front: Any = None                          # adverb, prepositional phrase or subordinate clause
    question: bool = False
    opening: Any = None                        # "But" that begins a sentence
    conjunction: Any = None
    second: Any = None

    def tree(self) -> Tree:
        nodes = english_clause(self.clause, question=self.question)
        if self.second:
            first = Tree("S", tuple(nodes))
            nodes = [first, *leaves(",", ","), self.conjunction.constituent, self.second.tree()]
        if self.front:
            front = self.front.tree()
            comma = () if front.label == "ADVP" else leaves(",", ",")
            nodes = [front, *comma, *nodes]
        if self.opening:
            nodes.insert(0, self.opening.constituent)
        return Tree("S", (*nodes, *leaves(".", "?" if self.question else ".")))

    def german(self) -> list[str]:
        """The finite verb is the second constituent; in a question it is the first."""
        words = []
        if self.opening:
            words += self.opening.german()
        if self.front:
            words += self.front.german()
        words += german_clause(self.clause, "inverted" if self.front or self.question else "main")
        if self.second:
            if self.conjunction.words == "aber":
                words.append(",")
            words += [self.conjunction.words, *german_clause(self.second, "main")]
        return words + ["?" if self.question else "."]


# ---- English: the chain of verbs and the clause

def english_verbs(clause: Clause, agreement: str, question: bool) -> list[tuple[str, str]]:
    """[(label, word), ...]: the finite verb, then "not" and the other verbs; "do" if needed."""
    group = clause.group
    past = group.tense == "past"
    finite = clause.verb
    auxiliary = finite is BE
    rest = []
    if group.perfect:
        finite = HAVE
        auxiliary = True
        rest = [("VBN", clause.verb.participle)]
    elif group.modal:
        finite = MODALS[group.modal]
        auxiliary = group.modal == "can"
        rest = [("VB", clause.verb.base)]
        if not auxiliary:
            rest.insert(0, ("TO", "to"))
    if (clause.negated or question) and not auxiliary:
        rest.insert(0, ("VB", finite.base))
        finite = DO
        auxiliary = True
    word = lexicon.english_verb(finite, past, agreement)
    if auxiliary and (finite is not BE or question):
        label = "AUX"
    elif past:
        label = "VBD"
    else:
        label = "VBZ" if agreement == "3" else "VBP"
    if clause.negated and word == "can":
        word = "cannot"
    elif clause.negated:
        rest.insert(0, ("RB", "not"))
    return [(label, word), *rest]


def english_complements(clause: Clause) -> list[Tree]:
    """The parts after the verbs: particle, objects, adjective, goal, place, time, clauses."""
    nodes = []
    if clause.recipient:
        nodes.append(clause.recipient.tree())
    if clause.object and clause.verb.particle:                     # waits for him
        preposition = leaves("IN", clause.verb.particle)
        nodes.append(Tree("PP", (*preposition, clause.object.tree())))
    elif clause.object:
        nodes.append(clause.object.tree())
    elif clause.verb.particle:                                     # wakes up
        nodes += leaves("PRT", clause.verb.particle)
    if clause.adjective:
        nodes.append(Tree("ADJP", leaves("JJ", clause.adjective.english)))
    for part in (clause.goal, clause.place, clause.time, clause.that, clause.reason):
        if part:
            nodes.append(part.tree())
    return nodes


def english_clause(clause: Clause, agreement: str = "", question: bool = False) -> list[Tree]:
    """The constituents directly below S. Every further verb heads a VP within the last one.

    An adverb comes after a finite auxiliary or be, and before any other verb.
    """
    subject = []
    if clause.subject:
        subject = [clause.subject.tree(0)]
        agreement = clause.subject.agreement
    adverb = [clause.adverb.constituent] if clause.adverb else []
    first, *rest = english_verbs(clause, agreement, question)
    finite = leaves(*first)[0]
    nodes = english_complements(clause)
    for label, word in reversed(rest):
        nodes.insert(0, leaves(label, word)[0])
        if label != "RB":
            nodes = [Tree("VP", tuple(nodes))]
    if question:
        return [finite, *subject, *adverb, *nodes]
    if finite.label == "AUX" or clause.verb is BE:
        return [*subject, Tree("VP", (finite, *adverb, *nodes))]
    return [*subject, *adverb, Tree("VP", (finite, *nodes))]


# ---- German: one clause, three orders

def german_verbs(clause: Clause, agreement: str, final: bool) -> tuple[str, list[str]]:
    """(the finite verb, the other verbs at the end of the clause).

    A separable prefix is at the end too, unless the finite verb is last and keeps it.
    """
    group, verb = clause.group, clause.verb
    past = group.tense == "past"
    if group.perfect:
        auxiliary = BE if verb.auxiliary == "sein" else HAVE
        return lexicon.german_verb(auxiliary, past, agreement), [verb.partizip]
    if group.modal:
        infinitive = verb.prefix + verb.infinitive
        return lexicon.german_verb(MODALS[group.modal], past, agreement), [infinitive]
    finite = lexicon.german_verb(verb, past, agreement)
    if final:
        return verb.prefix + finite, []
    return finite, [verb.prefix] if verb.prefix else []


def is_pronoun(phrase: Any) -> bool:
    """Whether a noun phrase is a pronoun (and not a name)."""
    return isinstance(phrase, Word) and phrase.label == "PRP"


def german_clause(clause: Clause, order: str, agreement: str = "") -> list[str]:
    """The words of a clause in the order "main" (subject, verb), "inverted" or "final" (verb last).

    The lists below come in this order, with the end of the verb before the clauses.
    """
    subject, object_ = clause.subject, clause.object
    case, preposition = clause.verb.case, clause.verb.preposition
    kein = clause.negated and object_ and not object_.definite and not preposition
    first = []                                 # the subject
    pronouns = []
    early = []                                 # recipient or name, time, adverb
    middle = []                                # definite object, nicht, place
    late = []                                  # other object, goal or adjective
    clauses = []                               # relative and subordinate
    if subject:
        agreement = subject.agreement
        first += subject.german("nom")
        if isinstance(subject.modifier, Relative):
            first += subject.modifier.german(subject)
    if is_pronoun(clause.recipient):
        pronouns += clause.recipient.german("dat")
    elif clause.recipient:
        early += clause.recipient.german("dat")
    if object_:
        words = object_.german(case, kein)
        if preposition:
            late += PrepositionalPhrase("", preposition, case, object_).german()
        elif is_pronoun(object_):
            pronouns += words
        elif isinstance(object_, Word):
            early += words
        elif object_.definite:
            middle += words
        else:
            late += words
        if isinstance(object_.modifier, Relative):
            clauses += object_.modifier.german(object_)
    if clause.time:
        early += clause.time.german()
    if clause.adverb:
        early += clause.adverb.german()
    if clause.negated and not kein:
        middle.append("nicht")
    if clause.place:
        middle += clause.place.german()
    if clause.goal:
        late += clause.goal.german()
    if clause.adjective:
        late.append(clause.adjective.german)
    if clause.that:
        clauses += clause.that.german()
    if clause.reason:
        clauses += clause.reason.german()
    finite, end = german_verbs(clause, agreement, order == "final")
    rest = [*early, *middle, *late, *end]
    if order == "final":
        return [*first, *pronouns, *rest, finite, *clauses]
    if order == "main":
        return [*first, finite, *pronouns, *rest, *clauses]
    # A pronoun comes before a noun, except "sie", which would be read as the subject.
    if isinstance(subject, Word) or pronouns == ["sie"]:
        return [finite, *first, *pronouns, *rest, *clauses]
    return [finite, *pronouns, *first, *rest, *clauses]
