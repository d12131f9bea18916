"""Corpora, vocabulary and batches: what comes in comes out, every pair exactly once, and mistakes are named."""
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from nmt import flags

from nmt import batches
from nmt import corpus
from nmt import encoded
from nmt import files
from nmt import tokenizer

import toy
from nmt.batches import batches, collate, padding_share
from nmt.corpus import Pairs
from nmt.encoded import encode_pairs
from nmt.files import Lines
from nmt.tokenizer import BOS, EOS, train_tokenizer
from transformer import PAD

ROOT = Path(__file__).resolve().parents[2]
MULTI30K = ROOT.parent / "shared" / "data" / "multi30k"
HOSTILE = ["", " ", "  two  spaces ", "naïve Straße 12.345,67 €",
           "\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea e\u0301",
           "\u05e9\u05dc\u05d5\u05dd \u202eabc\u202c \u0645\u0631\u062d\u0628\u0627", "犬も歩けば棒に当たる",
           "nul \x00 bell \x07 escape \x1b[31m", "a\u2028b\u2029c\x0bd\x0ce\x85f\x1cg", "tab\tand\rcarriage\n",
           "<s> </s> <pad> <unk> [PAD] [MASK]", "⟨s⟩⟨/s⟩⟨pad⟩", "Ġ Ċ ĠĠ", "\ufeffmark", "\U0010ffff"]


@pytest.fixture(scope="module")
def english():
    """A few hundred pairs of the embedded corpus."""
    found = toy.splits(600, 1, 1, seed=5)["train"]
    return Pairs([pair.english for pair in found], [pair.german for pair in found])


@pytest.fixture(scope="module")
def tokenizer(english):
    return train_tokenizer([*english.source, *english.target], 500)


@pytest.fixture(scope="module")
def encoded(tokenizer, english):
    return encode_pairs(tokenizer, english)


def flags(*argv):
    parser = flags.Parser()
    data.add_data_flags(parser)
    return parser.parse_args([str(word) for word in argv])


def own(folder, train=("a\nb\n", "x\ny\n"), valid=("c\n", "z\n"), test=None):
    """Writes texts (str or bytes) as own corpora; returns the flags that name them."""
    argv = ["--src", "en", "--tgt", "de"]
    for name, sides in (("train", train), ("valid", valid), ("test", test)):
        if sides:
            argv += [f"--{name}", folder / name]
            for language, text in zip(("en", "de"), sides):
                (folder / f"{name}.{language}").write_bytes(text if isinstance(text, bytes) else text.encode())
    return flags(*argv)


# ---- corpora

def test_own_corpora(tmp_path):
    corpora = corpus.load_corpora(own(tmp_path, test=("d\n", "w\n")))
    assert [list(side) for side in corpora.train] == [["a", "b"], ["x", "y"]]
    assert corpora.valid == (["c"], ["z"]) and corpora.test == (["d"], ["w"])
    assert (corpora.src, corpora.tgt, corpora.cache) == ("en", "de", None)
    assert corpus.load_corpora(own(tmp_path)).test is None


def test_line_ends_and_marks(tmp_path):
    """A byte-order mark goes, \\r\\n ends a line, and so does the end of the file; nothing else does."""
    path = tmp_path / "text.en"
    path.write_bytes("\ufeffone\r\ntwo\u2028\x0b\x0c\x85\x1c still two\n\nfour\rfour\n\ufefffive".encode())
    lines = Lines(path)
    expected = ["one", "two\u2028\x0b\x0c\x85\x1c still two", "", "four\rfour", "\ufefffive"]
    assert list(lines) == expected == list(lines) and len(lines) == 5


@pytest.mark.parametrize("text, count", [(b"\n", 1), (b"a", 1), (b"a\n", 1), (b"a\nb", 2), (b"\n\n", 2), (b"\x00", 1)])
def test_line_count(tmp_path, text, count):
    (tmp_path / "x.en").write_bytes(text)
    assert len(Lines(tmp_path / "x.en")) == count == len(list(Lines(tmp_path / "x.en")))


def error(args, *words):
    """The message of the error that loading raises, which must name all the words, on one line."""
    with pytest.raises(flags.UserError) as raised:
        corpora = corpus.load_corpora(args)
        tokenizer = tokenizer.corpus_tokenizer(corpora, args.vocab_size)
        encoded.encode_train(tokenizer, corpora, args.max_length)
    assert "\n" not in str(raised.value) and all(str(word) in str(raised.value) for word in words), raised.value


def test_error_missing_file(tmp_path):
    args = own(tmp_path)
    (tmp_path / "train.de").unlink()
    error(args, tmp_path / "train.de", "does not exist")


def test_error_missing_folder(tmp_path):
    error(flags("--train", tmp_path / "no/x", "--valid", tmp_path / "no/y", "--src", "en", "--tgt", "de"), "no/x.en")


def test_error_empty_file(tmp_path):
    error(own(tmp_path, train=("", "x\n")), tmp_path / "train.en", "empty")


def test_error_directory(tmp_path):
    args = own(tmp_path)
    (tmp_path / "valid.de").unlink()
    (tmp_path / "valid.de").mkdir()
    error(args, tmp_path / "valid.de", "directory")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_error_unreadable_file(tmp_path):
    args = own(tmp_path)
    (tmp_path / "train.en").chmod(0)
    error(args, tmp_path / "train.en", "cannot read", "permissions")


@pytest.mark.parametrize("part", ["train", "valid", "test"])
def test_error_unequal_line_counts(tmp_path, part):
    args = own(tmp_path, **{part: ("a\nb\n", "x\n")})
    error(args, tmp_path / f"{part}.en", "2 lines", tmp_path / f"{part}.de", "has 1")


@pytest.mark.parametrize("part", ["train", "valid"])
def test_error_invalid_utf8(tmp_path, part):
    error(own(tmp_path, **{part: (b"good\nb\xffd\n", "x\ny\n")}), tmp_path / f"{part}.en", "line 2", "not UTF-8")


def test_error_utf16(tmp_path):
    text = "a\n".encode("utf-16")
    error(own(tmp_path, train=(text, text)), tmp_path / "train.en", "line 1", "not UTF-8")


@pytest.mark.parametrize("given", [["--train", "x"], ["--valid", "x"], ["--test", "x"],
                                   ["--train", "x", "--valid", "y", "--src", "en"], ["--train", "x", "--tgt", "de"]])
def test_error_incomplete_flags(given):
    missing = [name for name in ("--train", "--valid", "--src", "--tgt") if name not in given]
    error(flags(*given), *missing)


def test_error_same_language_twice(tmp_path):
    args = own(tmp_path)
    args.tgt = "en"
    error(args, "--src", "--tgt", "en")


def test_error_language_of_a_named_corpus():
    error(flags("--data", "toy", "--src", "fr"), "--data toy", "fr", "en", "de")


@pytest.mark.parametrize("argv", [["--data", "wmt99"], ["--vocab-size", "258"], ["--vocab-size", "many"],
                                  ["--max-length", "0"], ["--max-length", "-3"], ["--dat", "toy"]])
def test_error_flags(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        flags(*argv)
    message = capsys.readouterr().err
    assert stop.value.code == 2 and argv[0] in message and message.count("\n") == 1


def test_error_vocabulary_too_large(tmp_path):
    """The message names the largest size, and that one works."""
    args = own(tmp_path, train=("ab ab ab\n" * 3, "cd cd\n" * 3))
    args.vocab_size = 5000
    corpora = corpus.load_corpora(args)
    with pytest.raises(flags.UserError, match="--vocab-size 5000.* largest is ([0-9]+)") as raised:
        tokenizer.corpus_tokenizer(corpora, args.vocab_size)
    largest = int(str(raised.value).split()[-1])
    assert tokenizer.corpus_tokenizer(corpora, largest).get_vocab_size() == largest
    assert tokenizer.corpus_tokenizer(corpora).get_vocab_size() == largest           # a default shrinks by itself


def test_error_no_pair_left(tmp_path):
    error(own(tmp_path, train=("\n \n", "x\ny\n")), "no training pair", "2 have an empty side")
    args = own(tmp_path, train=("a b c\n", "x y z\n"))
    args.max_length = 1
    error(args, "1 more tokens than --max-length 1")


def test_toy(monkeypatch):
    """The embedded corpus in both directions; its parts share no sentence."""
    for name, size in (("TOY_TRAIN", 60), ("TOY_VALID", 20), ("TOY_TEST", 30)):
        monkeypatch.setattr(data, name, size)
    forth, back = corpus.load_corpora(flags()), corpus.load_corpora(flags("--src", "de"))
    assert [len(part.source) for part in (forth.train, forth.valid, forth.test)] == [60, 20, 30]
    assert (forth.src, forth.tgt) == ("en", "de") and (back.src, back.tgt) == ("de", "en")
    assert forth.train == tuple(reversed(back.train)) and forth.train.target[0] != forth.train.source[0]
    sentences = forth.train.source + forth.valid.source + forth.test.source
    assert len(set(sentences)) == len(sentences)


# ---- vocabulary

def test_round_trip(tokenizer, english):
    """decode(encode(text)) is the text, whatever it is, and no text gives a special token."""
    rng = random.Random(1)
    points = [chr(c) for c in (*range(0x300), *range(0x4e00, 0x4e20), *range(0x1f600, 0x1f640), 0x200d, 0xfeff)]
    noise = ["".join(rng.choices(points, k=rng.randint(1, 30))) for _ in range(300)]
    for text in HOSTILE + noise + english.target[:50]:
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids) == text and min(ids, default=3) > max(PAD, BOS, EOS)


def test_special_tokens(tokenizer):
    assert [tokenizer.token_to_id(token) for token in tokenizer.SPECIAL_TOKENS] == [PAD, BOS, EOS] == [0, 1, 2]
    ids = tokenizer.encode("Hello").ids
    assert tokenizer.decode([BOS, *ids, EOS, PAD, PAD]) == "Hello"


def test_frequent_look_alikes_do_not_become_special():
    """Text full of the special tokens' names, so that BPE merges them as far as it can."""
    text = "⟨s⟩ ⟨/s⟩ ⟨pad⟩ <s> </s> <pad>"
    tokenizer = train_tokenizer([text] * 50, 400, exact=False)
    ids = tokenizer.encode(text).ids
    assert min(ids) > EOS and tokenizer.decode(ids) == text


def test_save_and_load(tokenizer, tmp_path):
    tokenizer.save_tokenizer(tokenizer, tmp_path / "tokenizer.json")
    loaded = tokenizer.load_tokenizer(tmp_path / "tokenizer.json")
    assert loaded.to_str() == tokenizer.to_str()
    for text in HOSTILE:
        assert loaded.encode(text).ids == tokenizer.encode(text).ids and loaded.decode(loaded.encode(text).ids) == text
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[1, 2]", b'{"model": {"type": "BPE"}}'])
def test_error_foreign_tokenizer(tmp_path, content):
    (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(flags.UserError, match="t.json is not a tokenizer"):
        tokenizer.load_tokenizer(tmp_path / "t.json")


def test_error_tokenizer_with_other_special_tokens(tokenizer, tmp_path):
    content = tokenizer.to_str().replace("⟨pad⟩", "[PAD]")
    assert json.loads(content)
    (tmp_path / "t.json").write_text(content, encoding="utf-8")
    with pytest.raises(flags.UserError, match="t.json is not a tokenizer"):
        tokenizer.load_tokenizer(tmp_path / "t.json")


def test_error_missing_tokenizer(tmp_path):
    with pytest.raises(flags.UserError, match="cannot read the tokenizer .*t.json"):
        tokenizer.load_tokenizer(tmp_path / "t.json")


def test_same_tokenizer_in_every_process(tokenizer, english, tmp_path):
    """Hash seeds differ from process to process; the vocabulary does not."""
    (tmp_path / "lines").write_text("\n".join([*english.source, *english.target]), encoding="utf-8")
    code = ("import sys, data; sys.stdout.buffer.write("
            "tokenizer.train_tokenizer(files.Lines(sys.argv[1]), 500).to_str().encode())")
    other = subprocess.run([sys.executable, "-c", code, tmp_path / "lines"], cwd=ROOT, capture_output=True, check=True)
    assert other.stdout.decode() == tokenizer.to_str()


def test_long_word_is_learnt_from_in_part():
    """A line of a million letters neither stops the training nor is lost in encoding."""
    rng = random.Random(2)
    long = "".join(rng.choices("abcdefghij", k=1_000_000))
    tokenizer = train_tokenizer([long, "a b c"], 300)
    assert tokenizer.decode(tokenizer.encode(long).ids) == long


def test_tokenizer_of_a_large_corpus_learns_from_a_part(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "LEARN_FROM", 3)
    lines = [f"w{i}w" * 3 for i in range(9)]
    seen = []
    monkeypatch.setattr(data, "train_tokenizer", lambda lines, *args: seen.extend(lines))
    tokenizer.corpus_tokenizer(corpus.Corpora("own", "en", "de", Pairs(lines, lines), None, None, None))
    assert seen == [lines[0], lines[3], lines[6]] * 2


# ---- batches

def lengths(count=3000, seed=0):
    """Correlated source and target lengths, some of them zero."""
    rng = np.random.default_rng(seed)
    source = rng.poisson(15, count) * (rng.random(count) > 0.01)
    return source, np.maximum(0, source + rng.integers(-4, 6, count))


@pytest.mark.parametrize("max_tokens", [1, 40, 333, 4096, 10 ** 6])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_pair_once_and_size_rule(max_tokens, shuffle):
    """Rows times the widest row of the collated batch stay within max_tokens, but for a pair that is wider alone."""
    source, target = lengths()
    found = batches(source, target, max_tokens, seed=1, epoch=2, shuffle=shuffle)
    assert np.array_equal(np.sort(np.concatenate(found)), np.arange(len(source)))
    for batch in found:
        widest = max(source[batch].max() + 1, target[batch].max() + 2)
        assert len(batch) * widest <= max_tokens or len(batch) == 1


def test_batches_are_full():
    """No neighbours in length order fit into one batch."""
    source, target = lengths()
    found = batches(source, target, 400, shuffle=False)
    for first, second in zip(found, found[1:]):
        both = np.concatenate([first, second[:1]])
        assert len(both) * max(source[both].max() + 1, target[both].max() + 2) > 400


def test_batches_are_sorted_by_length():
    """Target lengths rise; within one target length, source lengths run upwards and downwards in turn."""
    source, target = lengths()
    order = np.concatenate(batches(source, target, 500, shuffle=False))
    assert (np.diff(target[order]) >= 0).all()
    for rank, length in enumerate(np.unique(target)):
        run = source[order][target[order] == length]
        assert (np.diff(run) * (-1) ** rank >= 0).all()


def test_order_depends_on_seed_and_epoch_alone():
    source, target = lengths()

    def made(seed, epoch):
        return [tuple(batch) for batch in batches(source, target, 500, seed, epoch)]

    assert made(1, 1) == made(1, 1)
    others = [made(1, 2), made(2, 1), made(2, 2), made(0, 0)]
    assert all(other != made(1, 1) for other in others)
    # Not the order alone: the batches themselves are put together anew.
    assert all(set(map(frozenset, other)) != set(map(frozenset, made(1, 1))) for other in others)


def test_batch_order_is_shuffled():
    source, target = lengths()
    means = [target[batch].mean() for batch in batches(source, target, 500, seed=1)]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.5


def test_padding_share(encoded):
    """Against counting the zeros of the collated batches."""
    found = batches(encoded.source_lengths, encoded.target_lengths, 512)
    tensors = [tensor for batch in found for tensor in collate(encoded, batch)]
    zeros, cells = sum(int((t == PAD).sum()) for t in tensors), sum(t.numel() for t in tensors)
    share = padding_share(encoded.source_lengths, encoded.target_lengths, found)
    assert share == pytest.approx(zeros / cells) and 0 < share
    assert padding_share([3, 3], [4, 4], [np.array([0, 1])]) == 0 == padding_share([], [], [])


def test_padding_on_toy():
    """Under 6 % on both sides together, of the embedded corpus at a tenth of its size and of the batches' size."""
    found = toy.splits(3000, 1, 1, seed=1)["train"]
    pairs = Pairs([pair.english for pair in found], [pair.german for pair in found])
    encoded = encode_pairs(train_tokenizer([*pairs.source, *pairs.target], 1000), pairs)
    sides = encoded.source_lengths, encoded.target_lengths
    assert padding_share(*sides, batches(*sides, 410)) < 0.06


@pytest.mark.skipif(not MULTI30K.exists(), reason="needs the Multi30K files")
def test_padding_on_multi30k():
    """Under 6 % on both sides together at 4,096 tokens."""
    pairs = corpus.read_pairs(MULTI30K / "train", "en", "de")
    tokenizer = train_tokenizer((line for side in pairs for line in side), 10_000)
    encoded = encode_pairs(tokenizer, pairs, max_length=256)
    assert len(encoded) == 29_000 and tokenizer.get_vocab_size() == 10_000
    sides = encoded.source_lengths, encoded.target_lengths
    for epoch in range(2):
        assert padding_share(*sides, batches(*sides, 4096, epoch=epoch)) < 0.06


@pytest.mark.parametrize("multiple", [1, 8])
def test_collate(encoded, tokenizer, english, multiple):
    """Row by row: source, EOS; BOS, target, EOS; zeros to the right."""
    indices = np.array([5, 0, 300, 17])
    batch = collate(encoded, indices, multiple)
    assert batch.source.dtype == batch.target.dtype == torch.int64
    assert batch.source.shape[1] % multiple == 0 and batch.target.shape[1] % multiple == 0
    for row, i in enumerate(indices):
        source = [*tokenizer.encode(english.source[i]).ids, EOS]
        target = [BOS, *tokenizer.encode(english.target[i]).ids, EOS]
        assert batch.source[row].tolist() == source + [PAD] * (batch.source.shape[1] - len(source))
        assert batch.target[row].tolist() == target + [PAD] * (batch.target.shape[1] - len(target))
    if multiple == 1:
        assert (batch.source[:, -1] == EOS).any() and (batch.target[:, -1] == EOS).any()


def test_collate_empty_sentences(tokenizer):
    encoded = encode_pairs(tokenizer, Pairs(["", "a"], ["b", ""]))
    batch = collate(encoded, [0, 1])
    assert batch.source[0].tolist() == [EOS, PAD] and batch.target[1].tolist() == [BOS, EOS, PAD]
    only = collate(encode_pairs(tokenizer, Pairs([""], [""])), [0])
    assert only.source.tolist() == [[EOS]] and only.target.tolist() == [[BOS, EOS]]


@pytest.mark.parametrize("workers", [0, 2])
def test_loader(encoded, workers):
    """A DataLoader gives the same batches in the same order, with and without worker processes."""
    found = batches(encoded.source_lengths, encoded.target_lengths, 2000)
    loader = torch.utils.data.DataLoader(batches.BatchDataset(encoded, found), batch_size=None, num_workers=workers)
    for batch, indices in zip(loader, found, strict=True):
        expected = collate(encoded, indices)
        assert torch.equal(batch.source, expected.source) and torch.equal(batch.target, expected.target)
