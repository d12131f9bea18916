"""sacreBLEU's tokenizer for a text: its script decides, or, where it has no letters, the name of
its language."""
import re
import unicodedata
from collections import Counter

# as in the Unicode names of their letters
SCRIPT = re.compile(r"\b(CJK|HIRAGANA|KATAKANA|HANGUL|THAI|LAO|KHMER|MYANMAR|TIBETAN)\b")
# ISO 639-1 and 639-3
CHINESE = ("zh", "zho", "cmn", "yue")
UNSPACED = ("ja", "jpn", "th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bo", "bod")


def bleu_tokenizer(lines, language: str = "") -> str:
    """sacreBLEU's tokenizer for lines of text: zh for Chinese, char where spaces do not separate
    words, otherwise 13a. The script of most letters decides; without letters, the language, as in
    "zh", "zh-CN" or "zho_Hans"."""
    characters = Counter("".join(lines))
    scripts = Counter()
    for character, count in characters.items():
        if character.isalpha():
            named = SCRIPT.search(unicodedata.name(character, ""))
            scripts[named[1] if named else "other"] += count
    if not scripts:
        return language_tokenizer(language)
    kana = scripts.pop("HIRAGANA", 0) + scripts.pop("KATAKANA", 0)
    han = scripts["CJK"]
    scripts["CJK"] += kana
    (script, letters), = scripts.most_common(1)
    if script == "other":
        return "13a"
    if script == "CJK" and 20 * kana < han:              # a Chinese text may quote some kana
        return "zh"
    if script == "HANGUL" and 10 * characters[" "] > letters:
        return "13a"
    return "char"


def language_tokenizer(language: str) -> str:
    """sacreBLEU's tokenizer by the name of a language."""
    code = re.split("[-_.]", language.lower())[0]
    if code in CHINESE:
        return "zh"
    return "char" if code in UNSPACED else "13a"
