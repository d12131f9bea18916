"""tatoeba/: what its README says about the sentences."""
import pytest

import tatoeba
from nmt.tokenizer import prepare_line


@pytest.mark.parametrize("part, count", [("train", 57_000), ("valid", 500), ("test", 1_000)])
def test_the_lines_of_a_part(part, count):
    """They are in the form in which models read them."""
    english, german = tatoeba.read_lines(f"{part}.en"), tatoeba.read_lines(f"{part}.de")
    assert len(english) == len(german) == count
    assert tatoeba.pairs(part) == [*zip(english, german)]
    for line in (*english, *german):
        assert line and line == prepare_line(line)


def test_a_german_line_translates_the_english_line():
    assert tatoeba.pairs("test")[1] == ("You didn't prepare me for this.",
                                        "Darauf hast du mich nicht vorbereitet.")


@pytest.mark.parametrize("language", ["en", "de"])
def test_no_sentence_is_in_two_parts(language):
    """Not even in lower case and without its end mark, as some of the training sentences are."""
    train, valid, test = ({line.lower().rstrip(".?!") for line in
                           tatoeba.read_lines(f"{part}.{language}")}
                          for part in ("train", "valid", "test"))
    assert not train & valid and not train & test and not valid & test
