"""The lexicon of the embedded corpus (toy.py): English and German words with the forms that the grammar needs.

One line is one lemma with exactly one translation. Left out are English words that would make the German
ambiguous: verbs whose past equals their base ("read", "put"), nouns whose plural equals their singular ("sheep"),
and "you". Semantic classes: H human, A animal, F food, T thing, W thing that people wear or carry, X text, V vehicle,
P place. A human noun also says which pronoun resumes it: `he`, `she`, or `-` where German gender and English
pronoun disagree (das Kind, das Mädchen).
"""
from typing import NamedTuple

CASES, SLOTS = ("nom", "acc", "dat"), "mfnp"                    # slots of agreement: three genders, and the plural


class Noun(NamedTuple):
    """A noun: English singular and plural; German nominative singular and plural, gender, other singular cases."""
    english: str
    english_plural: str
    german: str
    german_plural: str
    gender: str
    oblique: str                                                # der Junge, den Jungen; mostly equal to `german`


class Verb(NamedTuple):
    """A verb: its forms, what it governs in German, and the semantic classes it accepts."""
    base: str
    third: str
    past: str
    participle: str
    particle: str                                               # "up" of "wake up", "for" of "wait for", or ""
    infinitive: str                                             # without the separable prefix
    er: str
    praeteritum: str
    partizip: str
    prefix: str                                                 # separable prefix: "an" of anrufen, or ""
    auxiliary: str                                              # of the German perfect: haben or sein
    preposition: str                                            # of the German object: "auf" of warten auf, or ""
    case: str                                                   # of the German object
    subjects: str
    objects: str


class Adjective(NamedTuple):
    """An adjective: English, German predicative form, German stem before an ending."""
    english: str
    german: str
    stem: str


NOUNS = """
he   man men             Mann Männer m
he   boy boys            Junge Jungen m Jungen
he   father fathers      Vater Väter m
he   brother brothers    Bruder Brüder m
he   uncle uncles        Onkel Onkel m
he   king kings          König Könige m
he   teacher teachers    Lehrer Lehrer m
he   doctor doctors      Arzt Ärzte m
he   student students    Student Studenten m Studenten
he   farmer farmers      Bauer Bauern m Bauern
he   neighbor neighbors  Nachbar Nachbarn m Nachbarn
he   friend friends      Freund Freunde m
she  woman women         Frau Frauen f
she  mother mothers      Mutter Mütter f
she  sister sisters      Schwester Schwestern f
she  daughter daughters  Tochter Töchter f
she  aunt aunts          Tante Tanten f
she  queen queens        Königin Königinnen f
-    child children      Kind Kinder n
-    girl girls          Mädchen Mädchen n
A    dog dogs            Hund Hunde m
A    cat cats            Katze Katzen f
A    horse horses        Pferd Pferde n
A    bird birds          Vogel Vögel m
A    cow cows            Kuh Kühe f
A    mouse mice          Maus Mäuse f
A    lion lions          Löwe Löwen m Löwen
A    bear bears          Bär Bären m Bären
A    fox foxes           Fuchs Füchse m
F    apple apples        Apfel Äpfel m
F    egg eggs            Ei Eier n
F    cake cakes          Kuchen Kuchen m
F    pear pears          Birne Birnen f
F    tomato tomatoes     Tomate Tomaten f
F    potato potatoes     Kartoffel Kartoffeln f
F    cookie cookies      Keks Kekse m
F    roll rolls          Brötchen Brötchen n
W    hat hats            Hut Hüte m
W    coat coats          Mantel Mäntel m
W    bag bags            Tasche Taschen f
W    shirt shirts        Hemd Hemden n
W    flower flowers      Blume Blumen f
T    key keys            Schlüssel Schlüssel m
T    ball balls          Ball Bälle m
T    cup cups            Tasse Tassen f
T    knife knives        Messer Messer n
T    lamp lamps          Lampe Lampen f
T    chair chairs        Stuhl Stühle m
T    gift gifts          Geschenk Geschenke n
T    picture pictures    Bild Bilder n
X    book books          Buch Bücher n
X    letter letters      Brief Briefe m
X    story stories       Geschichte Geschichten f
X    poem poems          Gedicht Gedichte n
X    report reports      Bericht Berichte m
V    car cars            Auto Autos n
V    bicycle bicycles    Fahrrad Fahrräder n
V    train trains        Zug Züge m
V    bus buses           Bus Busse m
V    ship ships          Schiff Schiffe n
in   house houses        Haus Häuser n
in   garden gardens      Garten Gärten m
in   school schools      Schule Schulen f
in   forest forests      Wald Wälder m
in   kitchen kitchens    Küche Küchen f
in   city cities         Stadt Städte f
in   village villages    Dorf Dörfer n
in   church churches     Kirche Kirchen f
in   castle castles      Schloss Schlösser n
in   hotel hotels        Hotel Hotels n
in   museum museums      Museum Museen n
at   station stations    Bahnhof Bahnhöfe m
at   lake lakes          See Seen m
at   river rivers        Fluss Flüsse m
at   beach beaches       Strand Strände m
on   bridge bridges      Brücke Brücken f
on   street streets      Straße Straßen f
on   mountain mountains  Berg Berge m
"""

# English forms and particle or preposition | German infinitive (prefix-verb), er-form, preterite, participle
# (+ with sein), [preposition] case | subjects > objects
VERBS = {
    "object": """
see sees saw seen                     | sehen sieht sah gesehen acc                      | HA > HATXVP
find finds found found                | finden findet fand gefunden acc                  | HA > HATXF
love loves loved loved                | lieben liebt liebte geliebt acc                  | H > HAP
hear hears heard heard                | hören hört hörte gehört acc                      | HA > HA
visit visits visited visited          | besuchen besucht besuchte besucht acc            | H > HP
meet meets met met                    | treffen trifft traf getroffen acc                | H > H
call calls called called              | an-rufen ruft rief gerufen acc                   | H > H
invite invites invited invited        | ein-laden lädt lud geladen acc                   | H > H
ask asks asked asked                  | fragen fragt fragte gefragt acc                  | H > H
greet greets greeted greeted          | grüßen grüßt grüßte gegrüßt acc                  | H > H
understand understands understood understood | verstehen versteht verstand verstanden acc | H > HX
help helps helped helped              | helfen hilft half geholfen dat                   | H > HA
thank thanks thanked thanked          | danken dankt dankte gedankt dat                  | H > H
follow follows followed followed      | folgen folgt folgte +gefolgt dat                 | HA > HA
answer answers answered answered      | antworten antwortet antwortete geantwortet dat   | H > H
buy buys bought bought                | kaufen kauft kaufte gekauft acc                  | H > ATXFV
sell sells sold sold                  | verkaufen verkauft verkaufte verkauft acc        | H > ATFV
choose chooses chose chosen           | wählen wählt wählte gewählt acc                  | H > TFV
lose loses lost lost                  | verlieren verliert verlor verloren acc           | H > TX
forget forgets forgot forgotten       | vergessen vergisst vergaß vergessen acc          | H > TX
steal steals stole stolen             | stehlen stiehlt stahl gestohlen acc              | HA > F
carry carries carried carried         | tragen trägt trug getragen acc                   | H > T
draw draws drew drawn                 | zeichnen zeichnet zeichnete gezeichnet acc       | H > ATP
clean cleans cleaned cleaned          | putzen putzt putzte geputzt acc                  | H > TV
eat eats ate eaten                    | essen isst aß gegessen acc                       | H > F
write writes wrote written            | schreiben schreibt schrieb geschrieben acc       | H > X
translate translates translated translated | übersetzen übersetzt übersetzte übersetzt acc | H > X
repair repairs repaired repaired      | reparieren repariert reparierte repariert acc    | H > V
wash washes washed washed             | waschen wäscht wusch gewaschen acc               | H > VA
leave leaves left left                | verlassen verlässt verließ verlassen acc         | H > P
chase chases chased chased            | jagen jagt jagte gejagt acc                      | A > A
bite bites bit bitten                 | beißen beißt biss gebissen acc                   | A > HA
""",
    "oblique": """
listen listens listened listened to   | zu-hören hört hörte gehört dat                   | H > H
look looks looked looked for          | suchen sucht suchte gesucht acc                  | HA > HAT
wait waits waited waited for          | warten wartet wartete gewartet auf acc           | H > HV
think thinks thought thought of       | denken denkt dachte gedacht an acc               | H > HP
dream dreams dreamed dreamed of       | träumen träumt träumte geträumt von dat          | H > TVP
play plays played played with         | spielen spielt spielte gespielt mit dat          | HA > HA
talk talks talked talked to           | sprechen spricht sprach gesprochen mit dat       | H > H
work works worked worked for          | arbeiten arbeitet arbeitete gearbeitet für acc   | H > H
laugh laughs laughed laughed at       | lachen lacht lachte gelacht über acc             | H > HX
belong belongs belonged belonged to   | gehören gehört gehörte gehört dat                | TXV > H
""",
    "recipient": """
give gives gave given                 | geben gibt gab gegeben acc                       | H > TXF
show shows showed shown               | zeigen zeigt zeigte gezeigt acc                  | H > TXV
send sends sent sent                  | schicken schickt schickte geschickt acc          | H > TX
bring brings brought brought          | bringen bringt brachte gebracht acc              | H > TXF
lend lends lent lent                  | leihen leiht lieh geliehen acc                   | H > TXV
""",
    "alone": """
sleep sleeps slept slept              | schlafen schläft schlief geschlafen acc          | HA >
work works worked worked              | arbeiten arbeitet arbeitete gearbeitet acc       | H >
laugh laughs laughed laughed          | lachen lacht lachte gelacht acc                  | H >
sing sings sang sung                  | singen singt sang gesungen acc                   | H >
dance dances danced danced            | tanzen tanzt tanzte getanzt acc                  | H >
cry cries cried cried                 | weinen weint weinte geweint acc                  | H >
swim swims swam swum                  | schwimmen schwimmt schwamm +geschwommen acc      | HA >
wake wakes woke woken up              | auf-wachen wacht wachte +gewacht acc             | HA >
fall falls fell fallen asleep         | ein-schlafen schläft schlief +geschlafen acc     | HA >
""",
    "place": """
live lives lived lived                | wohnen wohnt wohnte gewohnt acc                  | H >
sit sits sat sat                      | sitzen sitzt saß gesessen acc                    | HA >
stand stands stood stood              | stehen steht stand gestanden acc                 | HAV >
stay stays stayed stayed              | bleiben bleibt blieb +geblieben acc              | HA >
arrive arrives arrived arrived        | an-kommen kommt kam +gekommen acc                | HV >
""",
    "goal": """
go goes went gone                     | gehen geht ging +gegangen acc                    | H >
run runs ran run                      | laufen läuft lief +gelaufen acc                  | HA >
come comes came come                  | kommen kommt kam +gekommen acc                   | HA >
""",
    "journey": """
drive drives drove driven             | fahren fährt fuhr +gefahren acc                  | H >
return returns returned returned      | zurück-kehren kehrt kehrte +gekehrt acc          | H >
""",
    "clause": """
say says said said                    | sagen sagt sagte gesagt acc                      | H >
believe believes believed believed    | glauben glaubt glaubte geglaubt acc              | H >
know knows knew known                 | wissen weiß wusste gewusst acc                   | H >
hope hopes hoped hoped                | hoffen hofft hoffte gehofft acc                  | H >
think thinks thought thought          | denken denkt dachte gedacht acc                  | H >
""",
    "adjective": """
be is was been                        | sein ist war +gewesen acc                        | HATXV >
""",
    "modal": """
can can could -                       | können kann konnte -  acc                        | HA >
have has had - to                     | müssen muss musste -  acc                        | HA >
want wants wanted - to                | wollen will wollte -  acc                        | HA >
"""}

# English, German predicative form[/stem before an ending] | the classes it goes with
ADJECTIVES = """
old alt              | HATXVP
young jung           | HA
big groß             | ATFVP
small klein          | HATFVP
new neu              | TXVP
beautiful schön      | TXP
red rot              | TFV
green grün           | TFV
blue blau            | TV
black schwarz        | ATV
white weiß           | ATV
happy glücklich      | H
sad traurig          | HX
tired müde/müd       | HA
hungry hungrig       | HA
sick krank           | HA
strong stark         | HA
clever klug          | HA
friendly freundlich  | H
rich reich           | H
poor arm             | H
famous berühmt       | HXP
sweet süß            | F
fresh frisch         | F
expensive teuer/teur | TV
cheap billig         | TV
heavy schwer         | T
long lang            | X
strange seltsam      | HXP
quiet ruhig          | P
dark dunkel/dunkl    | P
"""

RANKS = ("big small long", "old young new", "red green blue black white")    # the order of adjectives, after others
UNOWNED = "man woman boy girl king queen lion bear fox mountain street river lake beach station forest"    # by my, his
PASSING = "happy sad tired hungry sick strong friendly poor quiet dark expensive cheap"        # states that pass
NAMES = {"subject": {"she": "Anna Clara", "he": "Peter Max"}, "object": {"she": "Maria Emma", "he": "Paul Leo"}}

# English subject and object form | German nominative, accusative, dative | agreement: 1 (ich), 3 (er) or p (plural)
PRONOUNS = """
I me         ich mich mir    1
we us        wir uns uns     p
he him       er ihn ihm      3
she her      sie sie ihr     3
they them    sie sie ihnen   p
"""

# English singular and plural, German stem, pattern of its endings; "-" is no word at all
DETERMINERS = """
the the      d       der
this these   dies    der
every -      jed     der
a -          ein     ein
no -         kein    ein
my my        mein    ein
his his      sein    ein
her her      ihr     ein
- many       viel    viel
- two        zwei    zwei
- three      drei    zwei
"""
ENDINGS = {"nom": ("er", "e", "es", "e"), "acc": ("en", "e", "es", "e"), "dat": ("em", "er", "em", "en")}     # by SLOTS
WEAK = {"nom": ("e", "e", "e", "en"), "acc": ("en", "e", "e", "en"), "dat": ("en", "en", "en", "en")}
DER = {"nom": ("der", "die", "das", "die"), "acc": ("den", "die", "das", "die"), "dat": ("dem", "der", "dem", "den")}
RELATIVE = {(case, slot): "denen" if (case, slot) == ("dat", "p") else DER[case][i]
            for case in CASES for i, slot in enumerate(SLOTS)}
CONTRACTIONS = {("in", "dem"): "im", ("in", "das"): "ins", ("an", "dem"): "am", ("von", "dem"): "vom",
                ("zu", "dem"): "zum", ("zu", "der"): "zur"}

ADVERBS = {"often": "oft", "always": "immer", "sometimes": "manchmal"}
TIMES = {"present": {"today": "heute", "now": "jetzt"}, "past": {"yesterday": "gestern", "recently": "neulich"}}
PARTS_OF_DAY = {"morning": "am Morgen", "evening": "am Abend"}                                 # in the morning
PLACES = {"in": "in", "at": "an", "on": "auf"}                                                 # by class of the place
AROUND = {"behind": "hinter", "in front of": "vor", "next to": "neben"}                        # buildings
BUILDINGS = "house school church castle hotel museum station"
ORIGINS = "school city village church castle hotel"                                             # "from" is "aus"
GOALS = "school village church castle hotel museum station lake river beach bridge"            # "to" is "zu"
ROOMS = "house garden school forest kitchen church castle museum hotel city"                   # "into" is "in"
CONJUNCTIONS = {"because": "weil", "although": "obwohl", "while": "während", "if": "wenn"}


def nouns() -> dict[str, list[Noun]]:
    """The nouns by class. H is all humans, W is also in T, P is all places; around, from, to, into: those for that."""
    table: dict[str, list[Noun]] = {}
    for line in NOUNS.strip().split("\n"):
        kind, *forms = line.split()
        noun = Noun(*forms) if len(forms) == 6 else Noun(*forms, oblique=forms[2])
        wider = {"he": "H", "she": "H", "-": "H", "W": "T", "in": "P", "at": "P", "on": "P"}.get(kind)
        for key in (kind, wider) if wider else (kind,):
            table.setdefault(key, []).append(noun)
    for key, names in (("around", BUILDINGS), ("from", ORIGINS), ("to", GOALS), ("into", ROOMS)):
        table[key] = [noun for noun in table["P"] if noun.english in names.split()]
    return table


def verbs() -> dict[str, list[Verb]]:
    """The verbs by frame (what stands beside the subject)."""
    table = {}
    for frame, lines in VERBS.items():
        table[frame] = []
        for line in lines.strip().split("\n"):
            english, german, classes = (part.split() for part in line.split("|"))
            *english, particle = english if len(english) == 5 else (*english, "")
            infinitive, er, praeteritum, partizip, *government = german
            prefix, _, infinitive = infinitive.rpartition("-")
            auxiliary = "sein" if partizip.startswith("+") else "haben"
            preposition, case = ("", *government)[-2:]
            table[frame].append(Verb(*english, particle, infinitive, er, praeteritum, prefix + partizip.lstrip("+"),
                                     prefix, auxiliary, preposition, case, classes[0], "".join(classes[2:])))
    return table


def adjectives() -> dict[str, list[Adjective]]:
    """The adjectives by class of the noun; W takes those of T."""
    table: dict[str, list[Adjective]] = {}
    for line in ADJECTIVES.strip().split("\n"):
        words, classes = line.split("|")
        english, german = words.split()
        german, _, stem = german.partition("/")
        for kind in classes.strip():
            table.setdefault(kind, []).append(Adjective(english, german, stem or german))
    return table


def determiners() -> tuple[dict, dict]:
    """English: {(determiner, plural): word}. German: {(determiner, slot, case): (word, ending of an adjective)}.

    A determiner is named by its English singular (plural for many, two, three). An adjective takes the weak ending,
    but the strong one where no ending of the determiner shows the case (ein alter Mann, alte Männer); and after viele.
    """
    english, german = {}, {}
    for line in DETERMINERS.strip().split("\n"):
        one, many, stem, pattern = line.split()
        name = one if one != "-" else many
        english[name, False], english[name, True] = one.strip("-"), many.strip("-")
        for case in CASES:
            for i, slot in enumerate(SLOTS):
                ending = ENDINGS[case][i]
                if pattern == "zwei" or pattern == "ein" and (case, slot) in (("nom", "m"), ("nom", "n"), ("acc", "n")):
                    ending = ""
                bare = name == "a" and slot == "p"
                word = DER[case][i] if name == "the" else "" if bare else stem + ending
                strong = bare or not ending or pattern == "viel"
                german[name, slot, case] = word, ENDINGS[case][i] if strong else WEAK[case][i]
    return english, german


def noun_form(noun: Noun, plural: bool, case: str) -> str:
    """The German noun in that number and case: the dative plural ends in n unless it ends in n or s anyway."""
    if plural:
        return noun.german_plural + ("n" if case == "dat" and noun.german_plural[-1] not in "ns" else "")
    return noun.german if case == "nom" else noun.oblique


def verb_form(verb: Verb, past: bool, agreement: str) -> str:
    """The finite German form for ich (agreement 1), er (3) or wir and sie (p)."""
    if verb.infinitive == "sein" and not past:
        return {"1": "bin", "3": "ist", "p": "sind"}[agreement]
    if past:
        plural = verb.praeteritum + ("n" if verb.praeteritum.endswith("e") else "en")
        return plural if agreement == "p" else verb.praeteritum
    if agreement == "1" and verb.participle != "-" and verb.infinitive != "wissen":             # ich kann, ich weiß
        return verb.infinitive[:-1]
    return verb.infinitive if agreement == "p" else verb.er
