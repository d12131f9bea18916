"""The ten probing tasks from the derivations of the embedded grammar, with exact labels and without
easy ways round.

The tasks are those of Conneau et al. 2018, the labels SentEval's. All classes are equally frequent
in every part, and no two sentences of a task have the same words in any order. These cues are taken
away:

- BShif, CoIn, ToCo, TrDep: the class is drawn after the words. The same words could have become an
  example of every class, so words and length say nothing. ToCo and TrDep are without punctuation,
  and ToCo's labels too.
- TrDep: four noun phrases, one with a relative clause, stand in two clauses, one within the other;
  the depth follows from where the relative clause is and whether the subordinate clause stands in
  front.
- ToCo: the same clause as it is, as a question, or with its time, place or reason in front.
- BShif: as in SentEval, neither the first word nor punctuation moves; nor does "sometimes", which
  may stand anywhere.
- CoIn: as in SentEval, the first clause is the longer, the shorter, or of equal length equally
  often in both classes.
- SOMO: two sentences exchange a noun or a verb of the same form, so that neither verb can have the
  subject or object that it then has; the unchanged sentences are pairs that could have exchanged
  one. So single words say nothing.
- Tense: half of either class has a finite verb of the other tense in another clause.
- SubNm, ObjNm: half of either class has another noun of the other number. SeLen and WC ask for the
  length and the words themselves: nothing is taken away there.
"""
import random
import zlib
from typing import Any, Iterator

from tasks.probe_data import Item, Parts, fill, is_word, shifted
from toy import LONGEST, SHORTEST, grammar, words
from toy.lexicon import BE, NOUNS, VERBS
from toy.readings import Clause, NounPhrase, Relative, Sentence, Subordinate, Tree, Word

LENGTHS = {n: name for name, sizes in (("6-7", (6, 7)), ("8-9", (8, 9)), ("10-11", (10, 11)), ("12-13", (12, 13)),
                                       ("14-15", (14, 15)), ("16-20", range(16, 21))) for n in sizes}
KINDS = {noun.english: kind for kind in "HAFTXVP" for noun in NOUNS[kind]}              # "apple": F
TARGETS = {noun.english for kind in "FTXV" for noun in NOUNS[kind]}                     # of WC: things
DEPTHS = range(7, 12)                                           # of TrDep
PLACES = ((0, True), (3, False), (0, False), (1, True), (1, False), (2, True), (2, False), (3, True))
TOPS = ("NP_VP", "AUX_NP_VP", "ADVP_NP_VP", "PP_NP_VP", "SBAR_NP_VP")
NUMBERS = {False: "NN", True: "NNS"}                            # by NounPhrase.plural


def parts_of(record: Any, kind: type) -> Iterator[Any]:
    """All records of that type within a record, itself included."""
    if isinstance(record, kind):
        yield record
    if isinstance(record, tuple):
        for part in record:
            yield from parts_of(part, kind)


def pick(rng: random.Random, values):
    """One of the values; only `random` is drawn from, which gives every Python the same numbers."""
    return values[int(rng.random() * len(values))]


def item(label: str, sentence: Sentence, control=None, marks: bool = True) -> Item:
    """The sentence as it stands with that label; without marks, punctuation is left out of its
    tokens."""
    tree = sentence.tree()
    return Item(label, tuple(token for token in words(tree) if marks or is_word(token)), tree, control)


def length(found: Item) -> int:
    """The words of an item, punctuation not counted."""
    return sum(map(is_word, found.tokens))


def depth(tree: Tree) -> int:
    """The number of labels from the root down to the deepest word."""
    return 1 + max((depth(child) for child in tree.children if isinstance(child, Tree)), default=0)


def sampled(rng: random.Random) -> Iterator[Sentence]:
    """Endless derivations of the grammar."""
    start = grammar.sentence()
    while True:
        yield start.sample(rng.random)


def usual(items: Iterator[Item]) -> Iterator[Item]:
    """The items of as many words as the corpus has."""
    return (found for found in items if SHORTEST <= length(found) <= LONGEST)


# ---- One sentence, one item

def sentence_length(rng: random.Random) -> Iterator[Item]:
    """SeLen: the number of words, punctuation not counted, in six ranges."""
    for found in usual(item("", sentence) for sentence in sampled(rng)):
        yield found._replace(label=LENGTHS[length(found)])


def word_content(rng: random.Random) -> Iterator[Item]:
    """WC: which of the target words the sentence has; it has exactly one of them, once."""
    for sentence in sampled(rng):
        nouns = [phrase.noun.english for phrase in parts_of(sentence, NounPhrase) if not phrase.plural]
        here = [noun for noun in nouns if noun in TARGETS]
        if len(here) == 1:
            yield from usual(iter([item(here[0], sentence)]))


def bigram_shift(rng: random.Random) -> Iterator[Item]:
    """BShif: I where two neighbouring words changed places, else O."""
    for found in usual(item("O", sentence) for sentence in sampled(rng)):
        changed = shifted(found, rng, fixed="sometimes")
        if changed:
            yield changed


def tense(rng: random.Random) -> Iterator[Item]:
    """Tense: PRES or PAST, of the main clause (the first of two); control: a finite verb of the
    other tense."""
    for sentence in sampled(rng):
        tenses = [clause.group.tense for clause in parts_of(sentence, Clause)]
        main = sentence.clause.group.tense
        yield from usual(iter([item("PAST" if main == "past" else "PRES", sentence, any(x != main for x in tenses))]))


def number(rng: random.Random, role: str) -> Iterator[Item]:
    """SubNm, ObjNm: NN or NNS, of the main clause's subject or direct object; control: a noun of
    the other number."""
    for sentence in sampled(rng):
        phrase = getattr(sentence.clause, role)
        if isinstance(phrase, NounPhrase) and not (role == "object" and sentence.clause.verb.particle):
            other = any(found.plural != phrase.plural for found in parts_of(sentence, NounPhrase))
            yield from usual(iter([item(NUMBERS[phrase.plural], sentence, other)]))


def coordination_inversion(rng: random.Random) -> Iterator[Item]:
    """CoIn: I where the two clauses changed places, else O; control: which of the two, as they
    stand, is longer."""
    while True:
        sentence = grammar.coordination(pick(rng, grammar.TENSES)).sample(rng.random)
        first, second = sentence.clause, sentence.second
        if is_pronoun(first.subject) and second.object:         # might be intact in either order: she sees him, and
            continue
        inverted = rng.random() < 0.5
        turned = sentence._replace(clause=second, second=first) if inverted else sentence
        sizes = [len(words(clause.tree())) for clause in (turned.clause, turned.second)]
        found = item("I" if inverted else "O", turned, (sizes[0] > sizes[1]) - (sizes[0] < sizes[1]))
        yield from usual(iter([found._replace(tree=sentence.tree())]))


def is_pronoun(phrase: Any) -> bool:
    """Whether a noun phrase is a pronoun."""
    return isinstance(phrase, Word) and phrase.label == "PRP"


# ---- The same words in several orders

def top_constituents(rng: random.Random) -> Iterator[Item]:
    """ToCo: the labels directly below S, joined by "_". The clause has a finite auxiliary, time,
    place and reason."""
    tops = {"NP_VP": lambda clause: Sentence(clause),
            "AUX_NP_VP": lambda clause: Sentence(clause, question=True),
            "ADVP_NP_VP": lambda clause: Sentence(clause._replace(time=None), clause.time),
            "PP_NP_VP": lambda clause: Sentence(clause._replace(place=None), clause.place),
            "SBAR_NP_VP": lambda clause: Sentence(clause._replace(reason=None), clause.reason)}
    while True:
        tense = pick(rng, grammar.TENSES)
        draw = lambda part: part.sample(rng.random)
        group, time = draw(grammar.groups(tense)), draw(grammar.time(tense))
        if (group.perfect or group.modal == "can") and time.constituent.label == "ADVP":
            clause = Clause(draw(grammar.argument("H", "unquantified", 0, "subject")), group, False, time=time,
                            place=draw(grammar.prepositional("place")), reason=draw(grammar.reason(tense)),
                            **draw(grammar.predicate("H", False, 0, True)))
            top = pick(rng, TOPS)
            yield item(top, tops[top](clause), marks=False)


def tree_depth(rng: random.Random) -> Iterator[Item]:
    """TrDep: the number of labels from the root to the deepest word, 7 to 11.

    The relative clause at each of four places and the subordinate clause in front or behind
    (PLACES, the shallowest and the deepest first) make eight sentences; a derivation that has not
    all depths among them is left out.
    """
    verbs = [verb for verb in VERBS["object"] if "H" in verb.subjects and "H" in verb.objects]
    phrases = {plural: grammar.noun_phrase("H", "unquantified", 0, "p" if plural else "s") for plural in NUMBERS}
    while True:
        tense, plural = pick(rng, grammar.TENSES), rng.random() < 0.5
        draw = lambda part: part.sample(rng.random)
        modifier = next(found for found in iter(lambda: draw(grammar.modifiers("H")), 0) if isinstance(found, Relative))
        four = [draw(phrases[plural]) for _ in range(4)]
        groups, chosen = [draw(grammar.groups(tense)) for _ in range(2)], [pick(rng, verbs) for _ in range(2)]
        conjunction = draw(grammar.reason(tense)).conjunction
        variants: dict[int, list[Sentence]] = {n: [] for n in DEPTHS}
        for place, front in PLACES:
            subject, object_, second, third = (four[1:place + 1] + [four[0]._replace(modifier=modifier)]
                                               + four[place + 1:])
            reason = Subordinate(conjunction, Clause(second, groups[1], False, chosen[1], object=third))
            main = Clause(subject, groups[0], False, chosen[0], object=object_)
            sentence = Sentence(main, reason) if front else Sentence(main._replace(reason=reason))
            deep = depth(sentence.tree())
            if (place, front) == PLACES[0] and deep > DEPTHS[0] or (place, front) == PLACES[1] and deep < DEPTHS[-1]:
                break                                           # most derivations end here
            variants.setdefault(deep, []).append(sentence)
        if all(variants[n] for n in DEPTHS):
            label = pick(rng, DEPTHS)
            yield item(str(label), pick(rng, variants[label]), marks=False)


# ---- Words exchanged between two sentences

def odd_man_out(rng: random.Random) -> Iterator[Item]:
    """SOMO: C where a noun or verb was exchanged with another sentence's, else O; the tree is the
    unchanged one's."""
    waiting: dict[tuple, list] = {}
    for sentence in sampled(rng):
        clause = sentence.clause
        roles = [role for role in ("subject", "object") if movable(getattr(clause, role), clause.verb)]
        role, verb = pick(rng, roles) if roles else "", rng.random() < 0.5
        if not roles or sentence.second or clause.that:
            continue
        key = ("noun", getattr(clause, role).plural)
        if verb and role == "object" and clause.verb in VERBS["object"]:
            key = ("verb", clause.group, clause.negated, clause.subject.agreement, sentence.question)
        rivals = waiting.setdefault(key, [])
        here = (sentence, role)
        there = next((rival for rival in rivals if clash(here, rival) and clash(rival, here)), None)
        if there is None:
            rivals.append(here)
            del rivals[:-200]                                   # so that none of them waits for ever
            continue
        rivals.remove(there)
        label = "C" if rng.random() < 0.5 else "O"
        for one, other in ((here, there), (there, here)):
            changed = item(label, exchanged(one, other, key[0]) if label == "C" else one[0])
            yield from usual(iter([changed._replace(tree=one[0].tree())]))


def movable(phrase: Any, verb) -> bool:
    """Whether the noun of a subject or object may be exchanged: a noun phrase that nothing follows,
    of a full verb."""
    return isinstance(phrase, NounPhrase) and phrase.modifier is None and verb is not BE


def clash(one: tuple, other: tuple) -> bool:
    """Whether the noun of `other` (sentence, role) is none that the verb of `one` takes in its
    role.

    A place after a preposition ("laugh at the lake") would be no object but where it happens: such
    ones do not count.
    """
    clause, phrase = one[0].clause, getattr(other[0].clause, other[1])
    allowed = clause.verb.subjects if one[1] == "subject" else clause.verb.objects
    owned = getattr(clause, one[1]).determiner in ("my", "his", "her")
    kind, unowned = KINDS[phrase.noun.english], "unowned" in phrase.noun.classes
    return kind not in allowed and not (owned and unowned) and not (kind == "P" and clause.verb.particle)


def exchanged(one: tuple, other: tuple, what: str) -> Sentence:
    """The sentence of `one` with the noun, or the verb, of `other`."""
    (sentence, role), (rival, rival_role) = one, other
    if what == "verb":
        return sentence._replace(clause=sentence.clause._replace(verb=rival.clause.verb))
    phrase = getattr(sentence.clause, role)._replace(noun=getattr(rival.clause, rival_role).noun)
    return sentence._replace(clause=sentence.clause._replace(**{role: phrase}))


# ---- All of them

TWO_NUMBERS = tuple(NUMBERS.values())
LABELS = {"SeLen": tuple(dict.fromkeys(LENGTHS.values())), "WC": tuple(sorted(TARGETS)),
          "TrDep": tuple(map(str, DEPTHS)), "ToCo": TOPS, "BShif": ("I", "O"), "Tense": ("PAST", "PRES"),
          "SubNm": TWO_NUMBERS, "ObjNm": TWO_NUMBERS, "SOMO": ("C", "O"), "CoIn": ("I", "O")}
CONTROLS = {"Tense": (False, True), "SubNm": (False, True), "ObjNm": (False, True), "CoIn": (-1, 0, 1)}
MAKERS = {"SeLen": sentence_length, "WC": word_content, "TrDep": tree_depth, "ToCo": top_constituents,
          "BShif": bigram_shift, "Tense": tense, "SubNm": lambda rng: number(rng, "subject"),
          "ObjNm": lambda rng: number(rng, "object"), "SOMO": odd_man_out, "CoIn": coordination_inversion}


def toy_task(task: str, counts: dict[str, int], seed: int) -> Parts:
    """A task of those counts (rounded down to equal classes), {"train": [Item, ...], "valid": ...,
    "test": ...}.

    The same seed gives the same items on every machine and Python.
    """
    cells = [(label, control) for label in LABELS[task] for control in CONTROLS.get(task, (None,))]
    return fill(MAKERS[task](random.Random(seed * 1_000_003 + zlib.crc32(task.encode()))), cells, counts, seed)
