"""The ten probing tasks from the derivations of the embedded grammar, with exact labels and without
shortcuts.

The tasks are those of Conneau et al. 2018, the labels SentEval's. All classes are equally frequent
in every part, and no two sentences of a task have the same words in any order. These cues are
removed:

- BShif, CoIn, ToCo, TrDep: the class is drawn after the words. The same words could have become an
  example of every class, so words and length do not help. ToCo and TrDep are without punctuation,
  and ToCo's labels too.
- TrDep: four noun phrases, one with a relative clause, are in two clauses, one within the other;
  the depth follows from where the relative clause is and whether the subordinate clause is in
  front.
- ToCo: the same clause as it is, as a question, or with its time, place or reason in front.
- BShif: as in SentEval, neither the first word nor punctuation moves; nor does "sometimes", which
  may be anywhere.
- CoIn: as in SentEval, the first clause is the longer, the shorter, or of equal length equally
  often in both classes.
- SOMO: two sentences exchange a noun or a verb of the same form, so that neither verb can have the
  subject or object that it then has; the unchanged sentences are pairs that could have exchanged
  one. So single words do not help.
- Tense: half of either class has a finite verb of the other tense in another clause.
- SubNm, ObjNm: half of either class has another noun of the other number.

SeLen and WC ask for the length and the words themselves, so no cue is removed there.
"""
import functools
import random
import zlib
from typing import Any, Callable, Iterator, NamedTuple

from tasks.probe_data import Item, Parts, fill, is_word, word_count
from toy import LONGEST, SHORTEST, grammar, words
from toy.lexicon import BE, NOUNS, POSSESSIVE, VERBS
from toy.readings import Clause, NounPhrase, Relative, Sentence, Subordinate, Tree, is_pronoun

LENGTH_RANGES = ("6-7", "8-9", "10-11", "12-13", "14-15", "16-20")                    # for SeLen
CLASS_OF_NOUN = {noun.english: kind for kind in "HAFTXVP" for noun in NOUNS[kind]}    # "apple": F
TARGETS = {noun.english for kind in "FTXV" for noun in NOUNS[kind]}                   # for WC
DEPTHS = range(7, 12)           # for TrDep
# Of TrDep: which noun phrase has the relative clause; whether the subordinate clause is in front.
ARRANGEMENTS = ((0, True), (3, False), (0, False), (1, True), (1, False), (2, True), (2, False),
                (3, True))
TOPS = ("NP_VP", "AUX_NP_VP", "ADVP_NP_VP", "PP_NP_VP", "SBAR_NP_VP")
FRONTED = {"ADVP_NP_VP": "time", "PP_NP_VP": "place", "SBAR_NP_VP": "reason"}    # a Clause's


def parts_of(record: Any, kind: type) -> Iterator[Any]:
    """All records of that type within a record, itself included."""
    if isinstance(record, kind):
        yield record
    if isinstance(record, tuple):
        for part in record:
            yield from parts_of(part, kind)


def pick(rng: random.Random, values):
    """One of the values. It only calls `random`, which gives the same numbers on every Python."""
    return values[int(rng.random() * len(values))]


def item(label: str, sentence: Sentence, control=None, marks: bool = True) -> Item:
    """The sentence as an Item with that label; without `marks`, its punctuation is left out."""
    tree = sentence.tree()
    tokens = words(tree)
    if not marks:
        tokens = filter(is_word, tokens)
    return Item(label, tuple(tokens), tree, control)


def depth(tree: Tree) -> int:
    """The number of labels from the root down to the deepest word."""
    below = [depth(child) for child in tree.children if isinstance(child, Tree)]
    return 1 + max(below, default=0)


def sampled(rng: random.Random) -> Iterator[Sentence]:
    """Endless derivations of the grammar."""
    start = grammar.sentence()
    while True:
        yield start.sample(rng.random)


def usual(items: Iterator[Item]) -> Iterator[Item]:
    """The items whose length is that of a sentence of the corpus."""
    return (item for item in items if SHORTEST <= word_count(item.tokens) <= LONGEST)


# ---- One sentence, one item

def sentence_length(rng: random.Random) -> Iterator[Item]:
    """SeLen: the number of words, punctuation not counted, in six ranges."""
    for sentence in sampled(rng):
        unlabelled = item("", sentence)
        for label in LENGTH_RANGES:
            low, high = map(int, label.split("-"))
            if low <= word_count(unlabelled.tokens) <= high:
                yield unlabelled._replace(label=label)


def word_content(rng: random.Random) -> Iterator[Item]:
    """WC: which of the target words the sentence has; it has exactly one of them, once."""
    for sentence in sampled(rng):
        targets = []
        for phrase in parts_of(sentence, NounPhrase):
            if not phrase.plural and phrase.noun.english in TARGETS:
                targets.append(phrase.noun.english)
        if len(targets) == 1:
            yield item(targets[0], sentence)


def bigram_shift(rng: random.Random) -> Iterator[Item]:
    """BShif: I where two neighbouring words changed places, else O."""
    for intact in usual(item("O", sentence) for sentence in sampled(rng)):   # others draw nothing
        tokens = intact.tokens
        places = []                          # i, where tokens i and i + 1 may be exchanged
        for i in range(1, len(tokens) - 1):
            pair = tokens[i:i + 2]
            if "sometimes" not in pair and all(map(is_word, pair)):
                places.append(i)
        i = pick(rng, places) if places else 0
        exchange = rng.random() < 0.5
        if places and exchange:
            changed = (*tokens[:i], tokens[i + 1], tokens[i], *tokens[i + 2:])
            yield intact._replace(label="I", tokens=changed)
        elif places:
            yield intact


def tense(rng: random.Random) -> Iterator[Item]:
    """Tense: PRES or PAST, of the main clause (the first of two); control: a finite verb of the
    other tense."""
    for sentence in sampled(rng):
        main = sentence.clause.group.tense
        other = any(clause.group.tense != main for clause in parts_of(sentence, Clause))
        yield item("PAST" if main == "past" else "PRES", sentence, other)


def noun_number(rng: random.Random, role: str) -> Iterator[Item]:
    """SubNm, ObjNm: NN or NNS, of the main clause's subject or direct object; control: a noun of
    the other number."""
    for sentence in sampled(rng):
        phrase = getattr(sentence.clause, role)
        oblique = role == "object" and sentence.clause.verb.particle
        if isinstance(phrase, NounPhrase) and not oblique:
            plurals = [other.plural for other in parts_of(sentence, NounPhrase)]
            label = "NNS" if phrase.plural else "NN"
            yield item(label, sentence, (not phrase.plural) in plurals)


def coordination_inversion(rng: random.Random) -> Iterator[Item]:
    """CoIn: I where the two clauses changed places, else O; control: which is longer, the first or
    the second."""
    while True:
        sentence = grammar.coordination(pick(rng, grammar.TENSES)).sample(rng.random)
        first, second = sentence.clause, sentence.second
        if is_pronoun(first.subject) and second.object:
            continue                     # might be intact in either order: she sees him, and
        label = "O"
        turned = sentence
        if rng.random() < 0.5:
            label = "I"
            turned = sentence._replace(clause=second, second=first)
        first_length = len(words(turned.clause.tree()))
        second_length = len(words(turned.second.tree()))
        longer = (first_length > second_length) - (first_length < second_length)
        yield item(label, turned, longer)._replace(tree=sentence.tree())


# ---- The same words in several orders

def top_constituents(rng: random.Random) -> Iterator[Item]:
    """ToCo: the labels directly below S, joined by "_". The clause has a finite auxiliary, time,
    place and reason."""
    while True:
        tense = pick(rng, grammar.TENSES)
        group = grammar.groups(tense).sample(rng.random)
        time = grammar.time(tense).sample(rng.random)
        auxiliary = group.perfect or group.modal == "can"
        if not auxiliary or time.constituent.label != "ADVP":
            continue
        subject = grammar.argument("H", "unquantified", 0, "subject").sample(rng.random)
        place = grammar.prepositional("place").sample(rng.random)
        reason = grammar.reason(tense).sample(rng.random)
        predicate = grammar.predicate("H", False, 0, True).sample(rng.random)
        clause = Clause(subject, group, False, time=time, place=place, reason=reason, **predicate)
        top = pick(rng, TOPS)
        yield item(top, with_top(clause, top), marks=False)


def with_top(clause: Clause, top: str) -> Sentence:
    """The clause as the sentence whose top constituents these are, one of TOPS."""
    if top == "AUX_NP_VP":
        return Sentence(clause, question=True)
    if top in FRONTED:
        part = FRONTED[top]
        return Sentence(clause._replace(**{part: None}), getattr(clause, part))
    return Sentence(clause)


def tree_depth(rng: random.Random) -> Iterator[Item]:
    """TrDep: the number of labels from the root to the deepest word, 7 to 11.

    A draw is dropped unless its eight sentences (see `by_depth`) have all depths.
    """
    verbs = [verb for verb in VERBS["object"] if "H" in verb.subjects and "H" in verb.objects]
    noun_phrases = {n: grammar.noun_phrase("H", "unquantified", 0, n) for n in "sp"}
    while True:
        tense = pick(rng, grammar.TENSES)
        number = "p" if rng.random() < 0.5 else "s"
        relative = None
        while not isinstance(relative, Relative):
            relative = grammar.modifiers("H").sample(rng.random)
        phrases = [noun_phrases[number].sample(rng.random) for _ in range(4)]
        groups = [grammar.groups(tense).sample(rng.random) for _ in range(2)]
        pair = [pick(rng, verbs) for _ in range(2)]
        conjunction = grammar.reason(tense).sample(rng.random).conjunction
        sentences = by_depth(phrases, relative, groups, pair, conjunction)
        if all(sentences.get(n) for n in DEPTHS):
            label = pick(rng, DEPTHS)
            yield item(str(label), pick(rng, sentences[label]), marks=False)


def by_depth(phrases, relative, groups, verbs, conjunction) -> dict[int, list[Sentence]]:
    """The eight sentences of ARRANGEMENTS by their depths, {depth: sentences}."""
    sentences: dict[int, list[Sentence]] = {}
    for place, front in ARRANGEMENTS:
        four = phrases[1:]
        four.insert(place, phrases[0]._replace(modifier=relative))
        subject, object_, second, third = four
        reason = Subordinate(conjunction, Clause(second, groups[1], False, verbs[1], object=third))
        main = Clause(subject, groups[0], False, verbs[0], object=object_)
        if front:
            sentence = Sentence(main, reason)
        else:
            sentence = Sentence(main._replace(reason=reason))
        sentences.setdefault(depth(sentence.tree()), []).append(sentence)
    return sentences


# ---- Words exchanged between two sentences

def odd_man_out(rng: random.Random) -> Iterator[Item]:
    """SOMO: C where a noun or verb was exchanged with that of an earlier sentence, else O. The tree
    is that of the unchanged sentence."""
    waiting: dict[tuple, list] = {}
    for sentence in sampled(rng):
        clause = sentence.clause
        roles = [role for role in ("subject", "object")
                 if movable(getattr(clause, role), clause.verb)]
        role = pick(rng, roles) if roles else ""
        verb = rng.random() < 0.5
        if not roles or sentence.second or clause.that:
            continue
        key = ("noun", getattr(clause, role).plural)
        if verb and role == "object" and clause.verb in VERBS["object"]:
            key = ("verb", clause.group, clause.negated, clause.subject.agreement,
                   sentence.question)
        rivals = waiting.setdefault(key, [])
        current = (sentence, role)
        clashing = (rival for rival in rivals if clash(current, rival) and clash(rival, current))
        partner = next(clashing, None)
        if partner is None:
            rivals.append(current)
            del rivals[:-200]                            # so that none of them waits for ever
            continue
        rivals.remove(partner)
        changed = rng.random() < 0.5
        for one, other in ((current, partner), (partner, current)):
            intact = one[0]
            if changed:
                yield item("C", exchanged(one, other, key[0]))._replace(tree=intact.tree())
            else:
                yield item("O", intact)


def movable(phrase: Any, verb) -> bool:
    """Whether the noun of a subject or object may be exchanged. Its noun phrase must have no
    modifier, and the verb must not be "be"."""
    return isinstance(phrase, NounPhrase) and phrase.modifier is None and verb is not BE


def clash(one: tuple, other: tuple) -> bool:
    """Whether the noun of `other` (sentence, role) cannot replace that of `one`.

    A place after a preposition never counts: in "laugh at the lake" it is not an object, but where
    the action happens.
    """
    sentence, role = one
    rival, rival_role = other
    clause = sentence.clause
    noun = getattr(rival.clause, rival_role).noun
    noun_class = CLASS_OF_NOUN[noun.english]
    allowed = clause.verb.subjects if role == "subject" else clause.verb.objects
    if noun_class in allowed:
        return False
    owned = getattr(clause, role).determiner in POSSESSIVE
    if owned and "unowned" in noun.classes:
        return False
    return not (noun_class == "P" and clause.verb.particle)


def exchanged(one: tuple, other: tuple, what: str) -> Sentence:
    """The sentence of `one` with the noun, or the verb, of `other`."""
    sentence, role = one
    rival, rival_role = other
    if what == "verb":
        return sentence._replace(clause=sentence.clause._replace(verb=rival.clause.verb))
    noun = getattr(rival.clause, rival_role).noun
    phrase = getattr(sentence.clause, role)._replace(noun=noun)
    return sentence._replace(clause=sentence.clause._replace(**{role: phrase}))


# ---- The tasks

class ToyTask(NamedTuple):
    """The generator of a task's items, and the values that are equally frequent among them."""
    make: Callable[[random.Random], Iterator[Item]]
    labels: tuple
    controls: tuple = (None,)


TOY_TASKS = {
    "SeLen": ToyTask(sentence_length, LENGTH_RANGES),
    "WC": ToyTask(word_content, tuple(sorted(TARGETS))),
    "TrDep": ToyTask(tree_depth, tuple(map(str, DEPTHS))),
    "ToCo": ToyTask(top_constituents, TOPS),
    "BShif": ToyTask(bigram_shift, ("I", "O")),
    "Tense": ToyTask(tense, ("PAST", "PRES"), (False, True)),
    "SubNm": ToyTask(functools.partial(noun_number, role="subject"), ("NN", "NNS"), (False, True)),
    "ObjNm": ToyTask(functools.partial(noun_number, role="object"), ("NN", "NNS"), (False, True)),
    "SOMO": ToyTask(odd_man_out, ("C", "O")),
    "CoIn": ToyTask(coordination_inversion, ("I", "O"), (-1, 0, 1)),
}


def toy_task(task: str, counts: dict[str, int], seed: int) -> Parts:
    """The parts of a task, with the given counts rounded down to equal classes. The same seed gives
    the same parts on every machine and Python version."""
    make, labels, controls = TOY_TASKS[task]
    cells = [(label, control) for label in labels for control in controls]
    rng = random.Random(seed * 1_000_003 + zlib.crc32(task.encode()))
    items = make(rng)
    if task not in ("TrDep", "ToCo"):                    # their construction fixes the length
        items = usual(items)
    return fill(items, cells, counts, seed)
