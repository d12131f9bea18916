"""The words of the embedded corpus, read from lexicon.txt, and their inflection.

lexicon.txt explains its columns, the classes of nouns and the frames of verbs.
"""
from functools import cache
from pathlib import Path
from typing import NamedTuple

CASES = ("nom", "acc", "dat")
SLOTS = ("m", "f", "n", "p")                   # agreement: three genders and the plural
DEFINITE = ("the", "this", "my", "his", "her")
POSSESSIVE = ("my", "his", "her")


class Noun(NamedTuple):
    """A noun with its English and German forms."""
    classes: tuple[str, ...]                   # the widest first: H he, P at from
    english: str
    english_plural: str
    german: str
    german_plural: str
    gender: str
    oblique: str                               # accusative and dative singular: den Jungen


class Verb(NamedTuple):
    """A verb: its forms, what it governs in German, and the classes of nouns that it accepts."""
    base: str
    third: str
    past: str
    participle: str
    particle: str                              # "up" of "wake up", "for" of "wait for", or ""
    infinitive: str                            # without the separable prefix
    er: str
    praeteritum: str
    partizip: str
    prefix: str                                # the separable prefix: "an" of anrufen, or ""
    auxiliary: str                             # for the German perfect: haben or sein
    preposition: str                           # before the German object, as "auf" in warten auf
    case: str                                  # case of the German object
    subjects: str
    objects: str


class Adjective(NamedTuple):
    """An adjective: English, German as a predicate, German before an ending."""
    english: str
    german: str
    stem: str
    rank: str                                  # quality, size, age or color
    passing: bool


class Determiner(NamedTuple):
    """A determiner. A missing English form is ""."""
    english: str
    english_plural: str
    label: str                                 # names the English word
    stem: str                                  # stem of the German word
    endings: str                               # like those of der, dies, ein, viel or zwei


class Preposition(NamedTuple):
    """A preposition, the German case it governs and the class of the nouns it takes."""
    kind: str
    english: str
    german: str
    case: str
    nouns: str
    weight: int


def read_lexicon() -> dict[str, list[list[str]]]:
    """{section: rows} of lexicon.txt; a row is a list of columns."""
    sections: dict[str, list[list[str]]] = {}
    text = Path(__file__).with_name("lexicon.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("["):
            rows = sections[line.strip("[]")] = []
        elif line and not line.startswith("#"):
            rows.append([column.strip() for column in line.split("|")])
    return sections


SECTIONS = read_lexicon()


# ---- Nouns, verbs, adjectives

NOUNS: dict[str, list[Noun]] = {}              # by class
for classes, english, german, gender, *oblique in SECTIONS["nouns"]:
    oblique = oblique[0] if oblique else german.split()[0]
    noun = Noun(tuple(classes.split()), *english.split(), *german.split(), gender, oblique)
    for name in noun.classes:
        NOUNS.setdefault(name, []).append(noun)

ADJECTIVES: dict[str, list[Adjective]] = {}    # by the class of their nouns
for english, german, classes, rank, *passing in SECTIONS["adjectives"]:
    german, _, stem = german.partition("/")
    adjective = Adjective(english, german, stem or german, rank, bool(passing))
    for name in classes:
        ADJECTIVES.setdefault(name, []).append(adjective)


def parse_verb(english: str, german: str, subjects: str, objects="", government="acc") -> Verb:
    """The verb of one row."""
    base, third, past, participle, *particle = english.split()
    infinitive, er, praeteritum, partizip = german.split()
    prefix, _, infinitive = infinitive.rpartition("-")
    auxiliary = "sein" if partizip.startswith("+") else "haben"
    *preposition, case = government.split()
    return Verb(base, third, past, participle, " ".join(particle),
                infinitive, er, praeteritum, prefix + partizip.lstrip("+"), prefix, auxiliary,
                " ".join(preposition), case, subjects, objects)


VERBS = {}                                     # by frame: what the verb takes
for section, rows in SECTIONS.items():
    if section.endswith(" verbs"):
        VERBS[section.removesuffix(" verbs")] = [parse_verb(*row) for row in rows]

BE = VERBS["adjective"][0]
MODALS = {verb.base: verb for verb in VERBS["modal"]}
HAVE = MODALS["have"]._replace(participle="had", infinitive="haben", er="hat", praeteritum="hatte")
DO = HAVE._replace(base="do", third="does", past="did")


def english_verb(verb: Verb, past: bool, agreement: str) -> str:
    """The finite English form for the agreement 1 (I), 3 (he) or p (we, they)."""
    if verb is BE and past:
        return "were" if agreement == "p" else "was"
    if verb is BE:
        return {"1": "am", "3": "is", "p": "are"}[agreement]
    if past:
        return verb.past
    return verb.third if agreement == "3" else verb.base


def german_verb(verb: Verb, past: bool, agreement: str) -> str:
    """The finite German form for the agreement 1 (ich), 3 (er) or p (wir, sie)."""
    if past and agreement == "p":
        return verb.praeteritum + ("n" if verb.praeteritum.endswith("e") else "en")
    if past:
        return verb.praeteritum
    if verb is BE:
        return {"1": "bin", "3": "ist", "p": "sind"}[agreement]
    if agreement == "p":
        return verb.infinitive
    if agreement == "1" and verb.participle != "-" and verb.infinitive != "wissen":
        return verb.infinitive[:-1]
    return verb.er                             # also ich kann, ich weiß


def german_noun(noun: Noun, plural: bool, case: str) -> str:
    """The German noun in that number and case."""
    if not plural:
        return noun.german if case == "nom" else noun.oblique
    if case == "dat" and noun.german_plural[-1] not in "ns":       # den Hunden, den Frauen
        return noun.german_plural + "n"
    return noun.german_plural


# ---- Determiners and their endings

DETERMINERS = {}                               # by name: the English singular, else the plural
for english, *columns in SECTIONS["determiners"]:
    singular, plural = (word.strip("-") for word in english.split())
    DETERMINERS[singular or plural] = Determiner(singular, plural, *columns)

ENDINGS = {}                                   # {(name, case, slot): ending, article or pronoun}
for name, case, forms in SECTIONS["endings"]:
    for slot, form in zip(SLOTS, forms.split()):
        ENDINGS[name, case, slot] = form


@cache
def article(name: str, slot: str, case: str) -> tuple[str, str]:
    """The German determiner and the ending of an adjective after it.

    The ending is weak, but strong after viele and if no ending of the determiner shows the case
    (ein alter Mann, alte Männer).
    """
    determiner = DETERMINERS[name]
    strong = ENDINGS["strong", case, slot]
    weak = ENDINGS["weak", case, slot]
    if name == "a" and slot == "p":
        return "", strong
    if determiner.endings == "zwei":
        return determiner.stem, strong
    if determiner.endings == "viel":
        return determiner.stem + strong, strong
    if determiner.endings == "der":
        return ENDINGS["der", case, slot], weak
    if determiner.endings == "ein" and (case, slot) in (("nom", "m"), ("nom", "n"), ("acc", "n")):
        return determiner.stem, strong
    return determiner.stem + strong, weak


# ---- Pronouns, names, prepositions, uninflected words

PRONOUNS = SECTIONS["pronouns"]
NAMES = SECTIONS["names"]
CONTRACTIONS = {tuple(words.split()): word for words, word in SECTIONS["contractions"]}

PREPOSITIONS = []
for *columns, weight in SECTIONS["prepositions"]:
    PREPOSITIONS.append(Preposition(*columns, int(weight)))

FIXED: dict[str, dict[str, str]] = {}          # {kind: {English: German}}
for kind, english, german in SECTIONS["fixed"]:
    FIXED.setdefault(kind, {})[english] = german
