"""Summary, tags and title without a language model: the sentences and words that say most.

A sentence counts more the more of the frequent words of the transcript it has. Nothing is understood and
nothing is rephrased. The notice says so. For summaries worth reading, set `text_url`.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

LOCAL_ENRICHER: Final = "local extract"
LOCAL_NOTICE: Final = (
    "The summary is made of sentences of the transcript, and the tags of its frequent words, without a "
    "language model."
)
MAX_SUMMARY_SENTENCES: Final = 4
MAX_SUMMARY_CHARS: Final = 900
MAX_TAGS: Final = 8
MAX_TITLE_CHARS: Final = 80
MAX_SENTENCES: Final = 5_000
WORDS_PER_UNPUNCTUATED_SENTENCE: Final = 18
_WORD: Final = re.compile(r"[^\W\d_]{3,30}")
# Scripts without spaces between words, where a "word" of the pattern above is half a sentence.
_UNSPACED: Final = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]{5}")
_SENTENCE: Final = re.compile(r"[^.!?\u3002\uff01\uff1f\u061f]+[.!?\u3002\uff01\uff1f\u061f]*")
# Frequent words of English, German, French, Spanish, Italian, Portuguese and Dutch that name no topic.
_STOP_WORDS_TEXT: Final = """
about above after again against all also always and any are because been before being below between
both but can cannot could did does doing down during each even ever every few for from further get
gets going gonna got had has have having her here hers him his how into its just know let like
little make many may maybe more most much must not now off okay once one only other our out over own
really right same say see she should some something such take than that the their them then there
these they thing things think this those through too two under until use using very want was way
well were what when where which while who why will with would yeah yes you your aber alle als auch
auf aus bei bin bis das dass dem den der des die doch durch ein eine einen einer eines einem etwas
für ganz gibt habe haben hat hier ich ihr ihre immer ist jetzt kann kein keine man mehr mein mit
nach nicht noch nur oder schon sehr sein sich sie sind und uns unter viel von vor war wenn wer wie
wir wird zum zur über dans elle est les leur mais même nous par pas plus pour que qui sans ses son
sont sur tout une vous avec ces cette como con del ella entre esta este hay las los más muy para
pero por ser sin sobre una uno anche che come dal della delle dei era gli nel nella non per più
questa questo sono mas não nos pela pelo quando seu sua também uma een het niet van voor zijn
"""
STOP_WORDS: Final = frozenset(_STOP_WORDS_TEXT.split())


def extract_summary(text: str) -> str:
    """Return the sentences of a text that have most of its frequent words, in their order."""
    sentences = split_sentences(text)
    weights = count_topic_words(text)
    if not weights:
        return " ".join(sentences[:2])[:MAX_SUMMARY_CHARS]
    scores = [
        (sum(weights[word] for word in words) / (len(words) + 4), -number)
        for number, words in enumerate({*_find_words(sentence)} for sentence in sentences)
    ]
    chosen: list[int] = []
    length = 0
    for _, negative in sorted(scores, reverse=True)[:MAX_SUMMARY_SENTENCES]:
        sentence = sentences[-negative]
        if chosen and length + len(sentence) > MAX_SUMMARY_CHARS:
            continue
        chosen.append(-negative)
        length += len(sentence)
    return " ".join(sentences[number] for number in sorted(chosen))[:MAX_SUMMARY_CHARS]


def extract_tags(text: str, title: str | None = None) -> list[str]:
    """Return the most frequent words that are no stop words. Words of the title count more."""
    weights = count_topic_words(text)
    for word in _find_words(title or ""):
        if word in weights:
            weights[word] += 2
    ranked = sorted(weights.items(), key=lambda item: (-item[1], item[0]))
    return [word for word, _ in ranked[:MAX_TAGS]]


def extract_title(text: str) -> str | None:
    """Return the beginning of the first sentence, for a video without a title."""
    first = next(iter(split_sentences(text)), "").strip(" .!?")
    if len(first) <= MAX_TITLE_CHARS:
        return first or None
    return first[:MAX_TITLE_CHARS].rpartition(" ")[0] or first[:MAX_TITLE_CHARS]


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences. Where it has no punctuation, some words at a time are one sentence."""
    sentences: list[str] = []
    for match in _SENTENCE.finditer(text):
        words = match.group().split()
        step = WORDS_PER_UNPUNCTUATED_SENTENCE if len(words) > 60 else max(1, len(words))
        sentences += [" ".join(words[start : start + step]) for start in range(0, len(words), step)]
        if len(sentences) >= MAX_SENTENCES:
            break
    return [sentence for sentence in sentences if sentence.strip(" .!?")]


def count_topic_words(text: str) -> Counter[str]:
    """Count the words of a text that may be its topic."""
    words = _find_words(text)
    return Counter(word for word in words if word not in STOP_WORDS and not _UNSPACED.search(word))


def _find_words(text: str) -> list[str]:
    return [match.group().lower() for match in _WORD.finditer(text)]
