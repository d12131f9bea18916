"""sacreBLEU's tokenizer for a language, by any name of the language."""
import re

# names: ISO 639-1, 639-2 and 639-3, and what people write; FLORES adds a script, as in zho_Hans
CHINESE = "zh zho chi cmn yue wuu nan hak cn chinese mandarin cantonese"
KOREAN = "ko kor kr korean"
UNSPACED = (                    # others that are written without spaces between words
    "ja jpn jp japanese", "th tha thai", "lo lao", "km khm khmer", "my mya bur burmese",
    "bo bod tib tibetan", "dz dzo dzongkha", "shn shan")


def first_part(language: str) -> str:
    """"zh" of "zh-CN", "zho" of "zho_Hans"."""
    return re.split("[-_.]", language.lower())[0]


def is_unspaced(language: str) -> bool:
    """Whether a language is written without spaces between its words."""
    return first_part(language) in " ".join((CHINESE, *UNSPACED)).split()


def bleu_tokenizer(language: str) -> str:
    """sacreBLEU's tokenizer: characters where spaces do not separate words, and for Korean, whose
    words carry their endings; otherwise 13a."""
    if first_part(language) in CHINESE.split():
        return "zh"
    if is_unspaced(language) or first_part(language) in KOREAN.split():
        return "char"
    return "13a"
