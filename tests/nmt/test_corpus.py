"""Corpora by name and by prefix, and every mistake in naming them."""
import os

import pytest

from nmt import corpus
from nmt.corpus import DataFlags, load_corpora
from nmt.encoded import encode_train
from nmt.flags import UserError, parse
from nmt.tokenizer import corpus_tokenizer


def data_flags(*argv) -> DataFlags:
    """The flags of a corpus."""
    return parse(DataFlags, [str(word) for word in argv], "p.py", "")


def own(folder, train=("a\nb\n", "x\ny\n"), valid=("c\n", "z\n"), test=None):
    """Writes texts (str or bytes) as own corpora; returns the flags that name them."""
    argv = ["--src", "en", "--tgt", "de"]
    for name, sides in (("train", train), ("valid", valid), ("test", test)):
        if sides:
            argv += [f"--{name}", folder / name]
            for language, text in zip(("en", "de"), sides):
                (folder / f"{name}.{language}").write_bytes(
                    text if isinstance(text, bytes) else text.encode()
                )
    return data_flags(*argv)


def test_own_corpora(tmp_path):
    corpora = load_corpora(own(tmp_path, test=("d\n", "w\n")))
    assert [list(side) for side in corpora.train] == [["a", "b"], ["x", "y"]]
    assert corpora.valid == (["c"], ["z"]) and corpora.test == (["d"], ["w"])
    assert (corpora.src, corpora.tgt, corpora.cache) == ("en", "de", None)
    assert load_corpora(own(tmp_path)).test is None


def error(args, *words):
    """The message of the error that loading raises, which must name all the words, on one line."""
    with pytest.raises(UserError) as raised:
        corpora = load_corpora(args)
        tokenizer = corpus_tokenizer(corpora, args.vocab_size)
        encode_train(tokenizer, corpora, args.max_length)
    assert "\n" not in str(raised.value) and all(
        str(word) in str(raised.value) for word in words
    ), raised.value


def test_error_missing_file(tmp_path):
    args = own(tmp_path)
    (tmp_path / "train.de").unlink()
    error(args, tmp_path / "train.de", "does not exist")


def test_error_missing_folder(tmp_path):
    error(
        data_flags(
            "--train", tmp_path / "no/x", "--valid", tmp_path / "no/y", "--src", "en", "--tgt", "de"
        ),
        "no/x.en",
    )


def test_error_empty_file(tmp_path):
    error(own(tmp_path, train=("", "x\n")), tmp_path / "train.en", "empty")


def test_error_directory(tmp_path):
    args = own(tmp_path)
    (tmp_path / "valid.de").unlink()
    (tmp_path / "valid.de").mkdir()
    error(args, tmp_path / "valid.de", "directory")


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything"
)
def test_error_unreadable_file(tmp_path):
    args = own(tmp_path)
    (tmp_path / "train.en").chmod(0)
    error(args, tmp_path / "train.en", "cannot read", "choose another place")


@pytest.mark.parametrize("part", ["train", "valid", "test"])
def test_error_unequal_line_counts(tmp_path, part):
    args = own(tmp_path, **{part: ("a\nb\n", "x\n")})
    error(args, tmp_path / f"{part}.en", "2 lines", tmp_path / f"{part}.de", "has 1")


@pytest.mark.parametrize("part", ["train", "valid"])
def test_error_invalid_utf8(tmp_path, part):
    error(
        own(tmp_path, **{part: (b"good\nb\xffd\n", "x\ny\n")}),
        tmp_path / f"{part}.en",
        "line 2",
        "not UTF-8",
    )


def test_error_utf16(tmp_path):
    text = "a\n".encode("utf-16")
    error(own(tmp_path, train=(text, text)), tmp_path / "train.en", "line 1", "not UTF-8")


@pytest.mark.parametrize(
    "given",
    [
        ["--train", "x"],
        ["--valid", "x"],
        ["--test", "x"],
        ["--train", "x", "--valid", "y", "--src", "en"],
        ["--train", "x", "--tgt", "de"],
    ],
)
def test_error_incomplete_flags(given):
    missing = [name for name in ("--train", "--valid", "--src", "--tgt") if name not in given]
    error(data_flags(*given), *missing)


def test_error_same_language_twice(tmp_path):
    args = own(tmp_path)
    args.tgt = "en"
    error(args, "--src", "--tgt", "en")


def test_error_language_of_a_named_corpus():
    error(data_flags("--data", "toy", "--src", "fr"), "--data toy", "fr", "en", "de")


@pytest.mark.parametrize(
    "argv",
    [
        ["--data", "wmt99"],
        ["--vocab-size", "258"],
        ["--vocab-size", "many"],
        ["--max-length", "0"],
        ["--max-length", "-3"],
        ["--dat", "toy"],
    ],
)
def test_error_flags(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        data_flags(*argv)
    message = capsys.readouterr().err
    assert stop.value.code == 2 and argv[0] in message and message.count("\n") == 1


def test_error_vocabulary_too_large(tmp_path):
    """The message names the largest size, and that one works."""
    args = own(tmp_path, train=("ab ab ab\n" * 3, "cd cd\n" * 3))
    args.vocab_size = 5000
    corpora = load_corpora(args)
    with pytest.raises(UserError, match="--vocab-size 5000.* largest is ([0-9]+)") as raised:
        corpus_tokenizer(corpora, args.vocab_size)
    largest = int(str(raised.value).split()[-1])
    assert corpus_tokenizer(corpora, largest).get_vocab_size() == largest
    assert corpus_tokenizer(corpora).get_vocab_size() == largest  # a default shrinks by itself


def test_error_no_pair_left(tmp_path):
    error(own(tmp_path, train=("\n \n", "x\ny\n")), "no training pair", "2 have an empty side")
    args = own(tmp_path, train=("a b c\n", "x y z\n"))
    args.max_length = 1
    error(args, "1 more tokens than --max-length 1")


def test_toy(monkeypatch):
    """The embedded corpus in both directions; its parts share no sentence."""
    for name, size in (("TOY_TRAIN", 60), ("TOY_VALID", 20), ("TOY_TEST", 30)):
        monkeypatch.setattr(corpus, name, size)
    forth = load_corpora(data_flags())
    back = load_corpora(data_flags("--src", "de"))
    assert [len(part.source) for part in (forth.train, forth.valid, forth.test)] == [60, 20, 30]
    assert (forth.src, forth.tgt) == ("en", "de") and (back.src, back.tgt) == ("de", "en")
    assert forth.train == tuple(reversed(back.train))
    assert forth.train.target[0] != forth.train.source[0]
    sentences = forth.train.source + forth.valid.source + forth.test.source
    assert len(set(sentences)) == len(sentences)
