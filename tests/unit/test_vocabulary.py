import hashlib
import struct

import numpy as np
import pytest

from speclayers.drafting.vocabulary import choose_vocabulary, vocabulary_hash
from speclayers.errors import UserError


def test_most_frequent_tokens_are_chosen_and_ties_go_to_the_lower_id():
    responses = [np.array([7, 7, 7, 5, 5]), np.array([9, 3, 3, 2])]
    chosen = choose_vocabulary(responses, 4, 20, {0})
    assert chosen.ids.tolist() == [0, 3, 5, 7]
    assert chosen.coverage == pytest.approx(7 / 9)
    assert choose_vocabulary(responses, 5, 20, {0}).ids.tolist() == [0, 2, 3, 5, 7]


def test_end_tokens_are_always_members():
    assert choose_vocabulary([np.array([7, 7, 5])], 2, 20, {0, 19}).ids.tolist() == [0, 19]


def test_unused_ids_fill_a_short_list():
    chosen = choose_vocabulary([np.array([7, 9])], 6, 20, {0})
    assert chosen.ids.tolist() == [0, 1, 2, 3, 7, 9]
    assert chosen.coverage == 1


def test_whole_vocabulary_when_it_is_smaller():
    assert choose_vocabulary([np.array([1, 2])], 8192, 10, {0}).ids.tolist() == list(range(10))


def test_hash_depends_on_the_ids_alone():
    counted = choose_vocabulary([np.array([7, 7, 9])], 3, 20, {0})
    other_text = choose_vocabulary([np.array([9, 9, 9, 7, 7])], 3, 20, {0})
    assert counted.coverage == other_text.coverage == 1
    assert vocabulary_hash(counted.ids) == vocabulary_hash(other_text.ids)
    assert vocabulary_hash(counted.ids) != vocabulary_hash(choose_vocabulary([np.array([7, 8])], 3, 20, {0}).ids)
    assert vocabulary_hash(counted.ids) == hashlib.sha256(struct.pack("<3q", 0, 7, 9)).hexdigest()


def test_coverage_warning_starts_below_nine_in_ten(caplog):
    choose_vocabulary([np.array([5] * 90 + [6] * 10)], 2, 20, {0})
    assert "warning" not in caplog.text
    choose_vocabulary([np.array([5] * 89 + [6] * 11)], 2, 20, {0})
    assert "warning: draft.vocabulary: 2 tokens cover only 89.0 %" in caplog.text


def test_low_coverage_is_warned_of(caplog):
    caplog.set_level("INFO")
    choose_vocabulary([np.arange(10)], 11, 20, {0})
    assert "11 tokens cover 100.0 % of 10 response tokens" in caplog.text
    assert "warning" not in caplog.text
    choose_vocabulary([np.arange(10)], 5, 20, {0})
    assert "warning: draft.vocabulary: 5 tokens cover only 50.0 %" in caplog.text


def test_impossible_vocabularies_are_refused():
    with pytest.raises(UserError, match="holds no response token"):
        choose_vocabulary([np.array([], dtype=np.int32)], 5, 20, {0})
    with pytest.raises(UserError, match=r"draft\.vocabulary: 2 is too small for the 3 end tokens"):
        choose_vocabulary([np.array([5])], 2, 20, {0, 1, 2})
