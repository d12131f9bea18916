"""toy/readings.py: every construction of the corpus, built by hand, with German checked by hand."""
import pytest

import toy
from toy import grammar, lexicon
from toy.lexicon import ADJECTIVES, BE, NOUNS, VERBS
from toy.readings import (
    Both,
    Clause,
    Group,
    NounPhrase,
    PrepositionalPhrase,
    Relative,
    Sentence,
    Subordinate,
)

NOUN = {form: (noun, form == noun.english_plural) for group in NOUNS.values() for noun in group
        for form in (noun.english, noun.english_plural)}
ADJECTIVE = {one.english: one for group in ADJECTIVES.values() for one in group}
WORD = {}
for words in (grammar.PRONOUNS.values(), *grammar.NAMES.values()):
    for word in words:
        WORD[word.english[0]] = word
        WORD[word.english[1]] = word
ADVERB = {leaf.value.words: leaf.value for leaf in grammar.ADVERB.parts}
TIME = {}
for tense in grammar.TENSES:
    for kind in grammar.time(tense).parts:
        for leaf in kind.parts:
            TIME[leaf.value.words] = leaf.value
PREPOSITIONS = {one.english: (one.german, one.case) for one in lexicon.PREPOSITIONS}


def np(text, modifier=None):
    """A noun phrase from English words ("two old men", "him", "the man and the woman")."""
    if not isinstance(text, str):
        return text
    if " and " in text:
        return Both(*map(np, text.split(" and ")))
    if text in WORD:
        return WORD[text]
    *words, last = text.split()
    noun, plural = NOUN[last]
    names = {"an": "a", "these": "this"}
    determiner = names.get(words[0], words[0]) if words and words[0] not in ADJECTIVE else "a"
    adjectives = tuple(ADJECTIVE[word] for word in words if word in ADJECTIVE)
    return NounPhrase(determiner, adjectives, noun, plural, modifier)


def pp(text):
    """A prepositional phrase from English words ("in front of the old house")."""
    english = max((one for one in PREPOSITIONS if text.startswith(one + " ")), key=len)
    german, case = PREPOSITIONS[english]
    return PrepositionalPhrase(english, german, case, np(text[len(english) + 1:]))


def clause(subject, verb, object_=None, *, to=None, tense="present", perfect=False, modal="",
           negated=False, goal=None, place=None, time=None, adverb=None, that=None, because=None):
    """A clause; the frame of the verb follows from what stands beside it.

    `verb` is a base form, or "be ADJECTIVE".
    """
    frames = ["alone", "place", "object"]
    if to:
        frames = ["recipient"]
    elif that:
        frames = ["clause"]
    elif goal:
        frames = ["goal", "journey"]
    elif object_ or subject is None:
        frames = ["object", "oblique"]
    adjective = None
    if verb.startswith("be "):
        verb, adjective = BE, ADJECTIVE[verb[3:]]
    else:
        verb = next(one for frame in frames for one in VERBS[frame] if one.base == verb)
    return Clause(
        subject=subject and np(subject),
        group=Group(tense, perfect, modal),
        negated=negated,
        verb=verb,
        recipient=to and np(to),
        object=object_ and np(object_),
        adjective=adjective,
        goal=goal and pp(goal),
        that=that and Subordinate(grammar.THAT, that),
        adverb=ADVERB.get(adverb),
        place=place and pp(place),
        time=TIME.get(time),
        reason=because and subordinate(*because),
    )


def subordinate(word, clause):
    """A subordinate clause with because, although, while or if."""
    return Subordinate(grammar.CONJUNCTIONS[word], clause)


def main(*words, **more):
    """A sentence of one main clause."""
    return Sentence(clause(*words, **more))


def asked(*words, **more):
    """A question."""
    return Sentence(clause(*words, **more), question=True)


def after(front, *words, **more):
    """A sentence with something before its subject: a time, a place, or (conjunction, clause)."""
    if isinstance(front, tuple):
        front = subordinate(*front)
    else:
        front = TIME.get(front) or ADVERB.get(front) or pp(front)
    return Sentence(clause(*words, **more), front)


def two(first, conjunction, second):
    """Two clauses joined by "and" or "but"."""
    conjunction = grammar.AND if conjunction == "and" else grammar.BUT
    return Sentence(first, conjunction=conjunction, second=second)


def rel(antecedent, pronoun, *words, **more):
    """A noun phrase with a relative clause; the subject None is the gap, or else the object is."""
    return np(antecedent, Relative(pronoun, clause(*words, **more)))


HAND_CHECKED = [
    # verb second, gender and case of definite phrases: nominative, accusative, dative
    (main("the man", "buy", "the hat"), "The man buys the hat.", "Der Mann kauft den Hut."),
    (main("the woman", "buy", "the bag"), "The woman buys the bag.", "Die Frau kauft die Tasche."),
    (main("the child", "buy", "the book"), "The child buys the book.", "Das Kind kauft das Buch."),
    (main("the men", "help", "the women"),
     "The men help the women.", "Die Männer helfen den Frauen."),
    (main("the aunt", "help", "the uncle"),
     "The aunt helps the uncle.", "Die Tante hilft dem Onkel."),
    (main("the uncle", "help", "the aunt"),
     "The uncle helps the aunt.", "Der Onkel hilft der Tante."),
    (main("the cow", "follow", "the girl"),
     "The cow follows the girl.", "Die Kuh folgt dem Mädchen."),
    # ein, kein and possessives with adjectives (mixed endings)
    (main("an old man", "buy", "a red hat"),
     "An old man buys a red hat.", "Ein alter Mann kauft einen roten Hut."),
    (main("a young woman", "buy", "a new bag"),
     "A young woman buys a new bag.", "Eine junge Frau kauft eine neue Tasche."),
    (main("a small child", "buy", "a long book"),
     "A small child buys a long book.", "Ein kleines Kind kauft ein langes Buch."),
    (main("an old horse", "follow", "a young girl"),
     "An old horse follows a young girl.", "Ein altes Pferd folgt einem jungen Mädchen."),
    (main("my old friend", "thank", "her rich sister"),
     "My old friend thanks her rich sister.", "Mein alter Freund dankt ihrer reichen Schwester."),
    (main("his small daughters", "love", "my white cats"),
     "His small daughters love my white cats.",
     "Seine kleinen Töchter lieben meine weißen Katzen."),
    (main("no student", "understand", "a long report"),
     "No student understands a long report.", "Kein Student versteht einen langen Bericht."),
    # der, dieser, jeder with adjectives (weak endings)
    (main("this tired doctor", "greet", "this sick queen"),
     "This tired doctor greets this sick queen.", "Dieser müde Arzt grüßt diese kranke Königin."),
    (main("these old bears", "follow", "these young birds"),
     "These old bears follow these young birds.", "Diese alten Bären folgen diesen jungen Vögeln."),
    (main("every strong farmer", "choose", "every new car"),
     "Every strong farmer chooses every new car.", "Jeder starke Bauer wählt jedes neue Auto."),
    (main("the expensive car", "belong", "the rich king"),
     "The expensive car belongs to the rich king.", "Das teure Auto gehört dem reichen König."),
    # bare plurals, viele, zwei, drei (strong endings), dative plural in -n
    (main("old men", "love", "red flowers"),
     "Old men love red flowers.", "Alte Männer lieben rote Blumen."),
    (main("many poor students", "help", "many old teachers"),
     "Many poor students help many old teachers.",
     "Viele arme Studenten helfen vielen alten Lehrern."),
    (main("two small dogs", "follow", "three big cats"),
     "Two small dogs follow three big cats.", "Zwei kleine Hunde folgen drei großen Katzen."),
    (main("the car", "belong", "young doctors"),
     "The car belongs to young doctors.", "Das Auto gehört jungen Ärzten."),
    (main("dark forests", "be quiet"), "Dark forests are quiet.", "Dunkle Wälder sind ruhig."),
    (main("the big black dog", "bite", "a small boy"),
     "The big black dog bites a small boy.", "Der große schwarze Hund beißt einen kleinen Jungen."),
    # weak nouns
    (main("the boy", "see", "the lion"), "The boy sees the lion.", "Der Junge sieht den Löwen."),
    (main("a neighbor", "answer", "a farmer"),
     "A neighbor answers a farmer.", "Ein Nachbar antwortet einem Bauern."),
    # pronouns and names
    (main("I", "see", "him"), "I see him.", "Ich sehe ihn."),
    (main("we", "help", "them"), "We help them.", "Wir helfen ihnen."),
    (main("he", "thank", "her"), "He thanks her.", "Er dankt ihr."),
    (main("they", "love", "her"), "They love her.", "Sie lieben sie."),
    (main("she", "listen", "Paul"), "She listens to Paul.", "Sie hört Paul zu."),
    (main("Anna", "love", "her dog"), "Anna loves her dog.", "Anna liebt ihren Hund."),
    (main("I", "be tired", tense="past"), "I was tired.", "Ich war müde."),
    # two noun phrases joined
    (main("the man and the woman", "sell", "the ship and the car"),
     "The man and the woman sell the ship and the car.",
     "Der Mann und die Frau verkaufen das Schiff und das Auto."),
    # past, perfect with haben and sein, pluperfect
    (main("the mother", "write", "a letter", tense="past"),
     "The mother wrote a letter.", "Die Mutter schrieb einen Brief."),
    (main("the kings", "come", goal="into the house", tense="past"),
     "The kings came into the house.", "Die Könige kamen ins Haus."),
    (main("the mother", "write", "a letter", perfect=True),
     "The mother has written a letter.", "Die Mutter hat einen Brief geschrieben."),
    (main("two boys", "fall", perfect=True),
     "Two boys have fallen asleep.", "Zwei Jungen sind eingeschlafen."),
    (main("he", "lose", "his key", tense="past", perfect=True),
     "He had lost his key.", "Er hatte seinen Schlüssel verloren."),
    (main("we", "follow", "the bear", tense="past", perfect=True),
     "We had followed the bear.", "Wir waren dem Bären gefolgt."),
    (main("the girls", "be sick", perfect=True),
     "The girls have been sick.", "Die Mädchen sind krank gewesen."),
    # modals
    (main("I", "repair", "this bus", modal="can"),
     "I can repair this bus.", "Ich kann diesen Bus reparieren."),
    (main("she", "call", "the doctor", modal="have"),
     "She has to call the doctor.", "Sie muss den Arzt anrufen."),
    (main("they", "invite", "Emma", modal="want", tense="past"),
     "They wanted to invite Emma.", "Sie wollten Emma einladen."),
    (main("we", "wake", modal="have", tense="past"),
     "We had to wake up.", "Wir mussten aufwachen."),
    (main("the cat", "find", "the mouse", modal="can", tense="past"),
     "The cat could find the mouse.", "Die Katze konnte die Maus finden."),
    # negation: nicht after a definite object and before place, goal, preposition or adjective; kein
    (main("the man", "buy", "the hat", negated=True),
     "The man does not buy the hat.", "Der Mann kauft den Hut nicht."),
    (main("the man", "buy", "a hat", negated=True),
     "The man does not buy a hat.", "Der Mann kauft keinen Hut."),
    (main("I", "eat", "green apples", negated=True, tense="past"),
     "I did not eat green apples.", "Ich aß keine grünen Äpfel."),
    (main("he", "help", "a friend", negated=True, modal="can"),
     "He cannot help a friend.", "Er kann keinem Freund helfen."),
    (main("he", "understand", "her", negated=True, modal="can", tense="past"),
     "He could not understand her.", "Er konnte sie nicht verstehen."),
    (main("we", "wait", "a bus", negated=True),
     "We do not wait for a bus.", "Wir warten nicht auf einen Bus."),
    (main("she", "wash", "the cow", negated=True, modal="have"),
     "She does not have to wash the cow.", "Sie muss die Kuh nicht waschen."),
    (main("Max", "go", goal="to the school", negated=True, perfect=True),
     "Max has not gone to the school.", "Max ist nicht zur Schule gegangen."),
    (main("the book", "be expensive", negated=True),
     "The book is not expensive.", "Das Buch ist nicht teuer."),
    (main("the uncle", "call", "the aunt", negated=True),
     "The uncle does not call the aunt.", "Der Onkel ruft die Tante nicht an."),
    # two objects
    (main("the man", "give", "a gift", to="the child"),
     "The man gives the child a gift.", "Der Mann gibt dem Kind ein Geschenk."),
    (main("I", "show", "the pictures", to="them", perfect=True),
     "I have shown them the pictures.", "Ich habe ihnen die Bilder gezeigt."),
    (main("we", "send", "letters", to="my sisters", negated=True, tense="past"),
     "We did not send my sisters letters.", "Wir schickten meinen Schwestern keine Briefe."),
    (main("she", "lend", "the bicycle", to="Leo", negated=True, modal="want"),
     "She does not want to lend Leo the bicycle.", "Sie will Leo das Fahrrad nicht leihen."),
    # prepositional objects: accusative and dative
    (main("the girls", "think", "the lake"),
     "The girls think of the lake.", "Die Mädchen denken an den See."),
    (main("he", "dream", "a white ship"),
     "He dreams of a white ship.", "Er träumt von einem weißen Schiff."),
    (main("he", "dream", "the train", tense="past"),
     "He dreamed of the train.", "Er träumte vom Zug."),
    (main("the boys", "play", "her dogs", tense="past"),
     "The boys played with her dogs.", "Die Jungen spielten mit ihren Hunden."),
    (main("she", "talk", "him", perfect=True),
     "She has talked to him.", "Sie hat mit ihm gesprochen."),
    (main("the students", "laugh", "the poem"),
     "The students laugh at the poem.", "Die Studenten lachen über das Gedicht."),
    (main("I", "work", "a farmer"), "I work for a farmer.", "Ich arbeite für einen Bauern."),
    (main("the fox", "look", "the mice"),
     "The fox looks for the mice.", "Der Fuchs sucht die Mäuse."),
    # places (dative) and goals (accusative after in, dative after zu), contractions
    (main("the queen", "live", place="in the castle"),
     "The queen lives in the castle.", "Die Königin wohnt im Schloss."),
    (main("a bird", "sit", place="on the bridge"),
     "A bird sits on the bridge.", "Ein Vogel sitzt auf der Brücke."),
    (main("the train", "arrive", place="at the old station"),
     "The train arrives at the old station.", "Der Zug kommt am alten Bahnhof an."),
    (main("the bus", "stand", place="in front of the church"),
     "The bus stands in front of the church.", "Der Bus steht vor der Kirche."),
    (main("they", "stay", place="behind a dark house", tense="past"),
     "They stayed behind a dark house.", "Sie blieben hinter einem dunklen Haus."),
    (main("Clara", "swim", place="next to the castle"),
     "Clara swims next to the castle.", "Clara schwimmt neben dem Schloss."),
    (main("the cat", "run", goal="into the kitchen"),
     "The cat runs into the kitchen.", "Die Katze läuft in die Küche."),
    (main("I", "drive", goal="to the beach"), "I drive to the beach.", "Ich fahre zum Strand."),
    (main("we", "return", goal="to this village", perfect=True),
     "We have returned to this village.", "Wir sind zu diesem Dorf zurückgekehrt."),
    (main("they", "return", goal="to a lake"),
     "They return to a lake.", "Sie kehren zu einem See zurück."),
    # order between verb and end: time, adverb, definite object, place, indefinite object
    (main("the man", "meet", "the woman", time="heute"),
     "The man meets the woman today.", "Der Mann trifft heute die Frau."),
    (main("the man", "meet", "her", time="gestern", tense="past"),
     "The man met her yesterday.", "Der Mann traf sie gestern."),
    (main("Peter", "meet", "Maria", time="jetzt"),
     "Peter meets Maria now.", "Peter trifft Maria jetzt."),
    (main("we", "wash", "the car", time="neulich", tense="past", negated=True),
     "We did not wash the car recently.", "Wir wuschen neulich das Auto nicht."),
    (main("the aunt", "draw", "a horse", place="in the garden"),
     "The aunt draws a horse in the garden.", "Die Tante zeichnet im Garten ein Pferd."),
    (main("the aunt", "draw", "the horse", place="in the garden", negated=True),
     "The aunt does not draw the horse in the garden.",
     "Die Tante zeichnet das Pferd nicht im Garten."),
    (main("she", "sing", place="in the church", time="am Abend"),
     "She sings in the church in the evening.", "Sie singt am Abend in der Kirche."),
    (main("he", "play", "the dog", place="at the river", negated=True),
     "He does not play with the dog at the river.", "Er spielt nicht am Fluss mit dem Hund."),
    (main("the friends", "visit", "the museum", adverb="oft"),
     "The friends often visit the museum.", "Die Freunde besuchen oft das Museum."),
    (main("my brother", "forget", "the key", adverb="immer", perfect=True),
     "My brother has always forgotten the key.", "Mein Bruder hat immer den Schlüssel vergessen."),
    (main("the girl", "be hungry", adverb="manchmal"),
     "The girl is sometimes hungry.", "Das Mädchen ist manchmal hungrig."),
    # questions
    (asked("the child", "eat", "the cake"),
     "Does the child eat the cake?", "Isst das Kind den Kuchen?"),
    (asked("the children", "eat", "a cake", tense="past"),
     "Did the children eat a cake?", "Aßen die Kinder einen Kuchen?"),
    (asked("the king", "invite", "him"), "Does the king invite him?", "Lädt ihn der König ein?"),
    (asked("she", "invite", "him", perfect=True),
     "Has she invited him?", "Hat sie ihn eingeladen?"),
    (asked("the boy", "be sad"), "Is the boy sad?", "Ist der Junge traurig?"),
    (asked("these students", "translate", "the story", modal="have"),
     "Do these students have to translate the story?",
     "Müssen diese Studenten die Geschichte übersetzen?"),
    (asked("I", "leave", "the city", modal="can"),
     "Can I leave the city?", "Kann ich die Stadt verlassen?"),
    # something in front: verb second, the subject after it; a pronoun passes a noun
    (after("gestern", "the doctor", "come", goal="into the city", tense="past"),
     "Yesterday the doctor came into the city.", "Gestern kam der Arzt in die Stadt."),
    (after("am Morgen", "I", "drive", goal="to the station"),
     "In the morning, I drive to the station.", "Am Morgen fahre ich zum Bahnhof."),
    (after("on the street", "the girls", "find", "a key", tense="past"),
     "On the street, the girls found a key.", "Auf der Straße fanden die Mädchen einen Schlüssel."),
    (after("in the forest", "the dog", "hear", "them"),
     "In the forest, the dog hears them.", "Im Wald hört der Hund sie."),
    (after("manchmal", "the farmer", "bring", "eggs", to="her"),
     "Sometimes the farmer brings her eggs.", "Manchmal bringt ihr der Bauer Eier."),
    (after("manchmal", "Anna", "call", "him"),
     "Sometimes Anna calls him.", "Manchmal ruft Anna ihn an."),
    (after("heute", "the uncle", "sell", "the cow", negated=True),
     "Today the uncle does not sell the cow.", "Heute verkauft der Onkel die Kuh nicht."),
    (Sentence(clause("the mother", "sleep"), opening=grammar.BUT),
     "But the mother sleeps.", "Aber die Mutter schläft."),
    # subordinate clauses: verb last, prefix joined, auxiliaries after participle and infinitive
    (main("the woman", "laugh", because=("because", clause("the child", "sing"))),
     "The woman laughs because the child sings.", "Die Frau lacht, weil das Kind singt."),
    (main("he", "cry", because=(
        "because", clause("the train", "arrive", place="at the station", negated=True))),
     "He cries because the train does not arrive at the station.",
     "Er weint, weil der Zug nicht am Bahnhof ankommt."),
    (main("we", "sleep", tense="past", because=(
        "although", clause("he", "call", "them", tense="past"))),
     "We slept although he called them.", "Wir schliefen, obwohl er sie anrief."),
    (main("I", "cry", because=("because", clause("the fox", "steal", "the egg", perfect=True))),
     "I cry because the fox has stolen the egg.",
     "Ich weine, weil der Fuchs das Ei gestohlen hat."),
    (main("she", "sing", tense="past", because=(
        "while", clause("they", "clean", "the lamps", modal="have", tense="past"))),
     "She sang while they had to clean the lamps.",
     "Sie sang, während sie die Lampen putzen mussten."),
    (after(("if", clause("Peter", "come", goal="to the castle")), "the king", "be happy"),
     "If Peter comes to the castle, the king is happy.",
     "Wenn Peter zum Schloss kommt, ist der König glücklich."),
    (after(("although", clause("they", "be poor", tense="past")),
           "the sisters", "help", "him", tense="past"),
     "Although they were poor, the sisters helped him.",
     "Obwohl sie arm waren, halfen ihm die Schwestern."),
    (after(("because", clause("the dog", "wake", tense="past")),
           "the mouse", "fall", tense="past", negated=True),
     "Because the dog woke up, the mouse did not fall asleep.",
     "Weil der Hund aufwachte, schlief die Maus nicht ein."),
    # that
    (main("the man", "say", that=clause("the woman", "work")),
     "The man says that the woman works.", "Der Mann sagt, dass die Frau arbeitet."),
    (main("I", "know", that=clause("he", "choose", "a coat")),
     "I know that he chooses a coat.", "Ich weiß, dass er einen Mantel wählt."),
    (main("she", "believe", negated=True, perfect=True,
          that=clause("Max", "see", "the bear", perfect=True)),
     "She has not believed that Max has seen the bear.",
     "Sie hat nicht geglaubt, dass Max den Bären gesehen hat."),
    (main("they", "think", tense="past", that=clause(
        "I", "hope", tense="past", that=clause("he", "dance", tense="past"))),
     "They thought that I hoped that he danced.", "Sie dachten, dass ich hoffte, dass er tanzte."),
    # relative clauses: every gender; gap in nominative, accusative, dative; after the clause's end
    (main(rel("the man", "who", None, "buy", "the cake"), "sing"),
     "The man who buys the cake sings.", "Der Mann, der den Kuchen kauft, singt."),
    (main("we", "meet", rel("a woman", "who", None, "sell", "cars")),
     "We meet a woman who sells cars.", "Wir treffen eine Frau, die Autos verkauft."),
    (main("he", "lose", rel("the book", "that", "I", "translate", tense="past"), perfect=True),
     "He has lost the book that I translated.", "Er hat das Buch verloren, das ich übersetzte."),
    (main(rel("the letter", "that", "the queen", "write", tense="past"), "be long"),
     "The letter that the queen wrote is long.", "Der Brief, den die Königin schrieb, ist lang."),
    (main(rel("the boy", "whom", "they", "help", tense="past"), "thank", "them"),
     "The boy whom they helped thanks them.", "Der Junge, dem sie halfen, dankt ihnen."),
    (main("I", "see", rel("the students", "whom", "the teacher", "answer"), negated=True),
     "I do not see the students whom the teacher answers.",
     "Ich sehe die Studenten nicht, denen der Lehrer antwortet."),
    (main("the dog", "follow", rel("the cat", "that", None, "chase", "the mouse")),
     "The dog follows the cat that chases the mouse.",
     "Der Hund folgt der Katze, die die Maus jagt."),
    (main("he", "wait", rel("a friend", "who", None, "be sick", perfect=True), perfect=True),
     "He has waited for a friend who has been sick.",
     "Er hat auf einen Freund gewartet, der krank gewesen ist."),
    # prepositional phrases after a noun
    (main(np("the old man", pp("with the hat")), "sleep"),
     "The old man with the hat sleeps.", "Der alte Mann mit dem Hut schläft."),
    (main("I", "love", np("a girl", pp("from the village"))),
     "I love a girl from the village.", "Ich liebe ein Mädchen aus dem Dorf."),
    # two clauses joined
    (two(clause("the man", "buy", "a car", perfect=True), "and", clause("he", "wash", "the car")),
     "The man has bought a car, and he washes the car.",
     "Der Mann hat ein Auto gekauft und er wäscht das Auto."),
    (two(clause("I", "greet", "a woman", tense="past"), "but",
         clause("she", "answer", "Paul", tense="past", negated=True)),
     "I greeted a woman, but she did not answer Paul.",
     "Ich grüßte eine Frau, aber sie antwortete Paul nicht."),
]


@pytest.mark.parametrize("sentence, english, german", HAND_CHECKED,
                         ids=[row[1] for row in HAND_CHECKED])
def test_hand_checked(sentence, english, german):
    found = toy.example(sentence)
    assert (found.english, found.german) == (english, german)


def test_every_determiner_ending():
    """der, ein (kein) and viele before an adjective: three cases, three genders, plural."""
    cells = {"the": """
der alte Hund | die alte Kuh | das alte Pferd | die alten Hunde
den alten Hund | die alte Kuh | das alte Pferd | die alten Hunde
dem alten Hund | der alten Kuh | dem alten Pferd | den alten Hunden""", "no": """
kein alter Hund | keine alte Kuh | kein altes Pferd | keine alten Hunde
keinen alten Hund | keine alte Kuh | kein altes Pferd | keine alten Hunde
keinem alten Hund | keiner alten Kuh | keinem alten Pferd | keinen alten Hunden""", "many": """
- | - | - | viele alte Hunde
- | - | - | viele alte Hunde
- | - | - | vielen alten Hunden"""}
    for determiner, table in cells.items():
        for case, line in zip(lexicon.CASES, table.strip().split("\n")):
            for noun, expected in zip(("dog", "cow", "horse", "dogs"), line.split(" | ")):
                if expected != "-":
                    phrase = NounPhrase(determiner, (ADJECTIVE["old"],), *NOUN[noun])
                    assert " ".join(phrase.german(case)) == expected
