"""The peers rank as sumy's own classes do."""

import re

import numpy as np
import pytest
from sumy.models.dom import ObjectDocumentModel, Paragraph, Sentence
from sumy.nlp.stemmers import Stemmer
from sumy.summarizers.lex_rank import LexRankSummarizer
from sumy.summarizers.lsa import LsaSummarizer
from sumy.summarizers.text_rank import TextRankSummarizer
from sumy.utils import get_stop_words

import summary_peers as peers

TEXT = """\
The council met on Tuesday to vote on the new bridge across the river. Two designs were on the table. An arched bridge
of stone would cost nine million and last two centuries. A bridge of steel would cost four million, but would have to
be painted every ten years. Yes! The mayor spoke for stone, as the old bridges of the town are built of stone. It was
not to be. The treasurer showed that the town could not pay nine million without a loan, and that a loan would cost more
than painting. Several members asked whether painting could be left out. The engineer answered that steel without paint
rusts within a decade near the river. 1848. In the end the council voted for the bridge of steel, seven to four.
The works on the bridge begin in spring. Those who live near the river were told that the road will be closed.
Stones."""
SENTENCES = re.split(r"(?<=[.!])\s+", TEXT)


class Words:
    """A tokenizer of sumy's kind that needs no download."""

    def to_words(self, sentence):
        return peers.words_of(sentence)


def ratings(summarizer, sentences):
    """All scores of one of sumy's summarisers, instead of its choice."""
    found = []

    def keep(sentences, count, rating, *rest):
        found.extend(rating[sentence] if isinstance(rating, dict) else rating(sentence) for sentence in sentences)
        return ()

    summarizer._get_best_sentences = keep
    summarizer.stop_words = get_stop_words("english")
    summarizer(ObjectDocumentModel([Paragraph([Sentence(text, Words()) for text in sentences])]), 1)
    return np.array(found)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(peers.textrank, TextRankSummarizer), (peers.lexrank, LexRankSummarizer), (peers.lsa, LsaSummarizer)],
)
def test_the_peers_give_the_scores_of_sumy(ours, theirs):
    assert len(SENTENCES) == 15
    expected = ratings(theirs(Stemmer("english")), SENTENCES)
    np.testing.assert_allclose(ours(SENTENCES), expected, rtol=1e-9, atol=1e-12)
