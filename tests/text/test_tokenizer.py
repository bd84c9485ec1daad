import re
from pydoc_data.topics import topics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.base.errors import UserError
from reverie.base.parse import read_toml
from reverie.text.bpe import merges, split
from reverie.text.learn import TOKENIZERS, learn_tokenizer
from reverie.text.merges import WORD_PATTERN
from reverie.text.tokenizer import END, CharacterTokenizer
from reverie.text.tokenizer_table import TokenizerTable

PROSE = " ".join(topics.values())[:60_000]
SMALL = ["The quick brown fox jumps over the lazy dog.\n" * 3, "سلام دنیا، سلام", "naïve café"]
MADE = {name: learn_tokenizer(SMALL, name) for name in TOKENIZERS} | {
    "bpe:size=200": learn_tokenizer([PROSE], "bpe:size=200"),
    "byte-bpe:size=400": learn_tokenizer([PROSE], "byte-bpe:size=400"),
}
ANY = st.text(st.characters(codec=None, exclude_categories=()), max_size=60) | st.text("thequick brown\n", max_size=60)


@pytest.mark.parametrize("name", MADE)
@settings(max_examples=40, deadline=None)
@given(text=ANY)
def test_any_string_round_trips(name: str, text: str) -> None:
    tokenizer = MADE[name]
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids.tolist()) == text
    assert all(END < k < tokenizer.size for k in ids)


@pytest.mark.parametrize("name", MADE)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_tokens_decode(name: str, data: st.DataObject) -> None:
    tokenizer = MADE[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.size - 1), max_size=40))
    assert isinstance(tokenizer.decode(ids), str)


@pytest.mark.parametrize("name", MADE)
def test_tables_round_trip(name: str) -> None:
    import tomli_w

    tokenizer = MADE[name]
    kept = read_toml(tomli_w.dumps(TokenizerTable.of(tokenizer).model_dump()))
    again = TokenizerTable.model_validate(kept).build()
    text = PROSE[:5000] + "".join(SMALL) + "\U0001f600"
    assert again.pieces == tokenizer.pieces
    assert again.encode(text).tolist() == tokenizer.encode(text).tolist()


def test_the_textbook_example() -> None:
    """Abracadabra becomes XYcadXY and then ZcadZ."""
    learned = [pair for pair, _ in merges(["abracadabra"], 9)]
    assert learned == [("a", "b"), ("r", "a"), ("ab", "ra")]
    assert split("abracadabra", learned[:2]) == ("ab", "ra", "c", "a", "d", "ab", "ra")
    assert split("abracadabra", learned) == ("abra", "c", "a", "d", "abra")


def test_bpe_matches_the_library() -> None:
    tokenizer = MADE["bpe:size=200"]
    words = [word for word, _ in tokenizer.splitter.pre_tokenizer.pre_tokenize_str(PROSE)]
    ours = [pair for pair, _ in merges(words, len(tokenizer.merges))]
    assert len(ours) > 50
    assert ours == list(tokenizer.merges)
    for word in set(words[:2000]):
        assert tuple(tokenizer.spelled(k) for k in tokenizer.encode(word)) == split(word, ours)


def test_words_match_str_split_for_plain_text() -> None:
    plain = PROSE.encode("ascii", "ignore").decode()
    pattern = WORD_PATTERN.replace(r"\p{L}[\p{L}\p{M}]*", "[A-Za-z]+").replace(r"\p{N}", "[0-9]").replace(r"\p{L}", "A-Za-z")
    found = [w for w, _ in MADE["bpe"].splitter.pre_tokenizer.pre_tokenize_str(plain)]
    assert found == re.findall(pattern.replace("[^\\sA-Za-z[0-9]]", "[^\\sA-Za-z0-9]"), plain)


def test_larger_vocabularies_make_shorter_texts() -> None:
    lengths = [len(learn_tokenizer([PROSE], f"byte-bpe:size={size}").encode(PROSE)) for size in (257, 400, 800)]
    assert lengths[0] == len(PROSE.encode()) > lengths[1] > lengths[2]


def test_lengths_in_characters() -> None:
    tokenizer = CharacterTokenizer("abc")
    assert tokenizer.size == 1 + 16 + 3
    assert len(tokenizer.encode("abcab")) == 5
    assert len(tokenizer.encode("aéa")) == 1 + 4 + 1  # two bytes, two halves each


@pytest.mark.parametrize(
    "table",
    [
        {"name": "characters", "alphabet": "ba"},
        {"name": "characters", "alphabet": "aa"},
        {"name": "characters", "alphabet": "a", "merges": ["a", "a"]},
        {"name": "bytes", "alphabet": "a"},
        {"name": "bpe", "alphabet": "ab", "merges": ["a", "c"]},
        {"name": "bpe", "alphabet": "ab", "merges": ["a"]},
        {"name": "byte-bpe", "merges": ["a", "\u2603"]},
        {"name": "bpe", "alphabet": "ab", "merges": ["a", "b" * 100]},
        {"name": "words"},
    ],
)
def test_invalid_tables_are_refused(table: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        TokenizerTable.model_validate(table).build()


@pytest.mark.parametrize("spec", ["bpe:size=3", "byte-bpe:size=200", "byte-bpe:size=1000000", "words", "bytes:size=3"])
def test_invalid_specs_are_refused(spec: str) -> None:
    with pytest.raises(UserError):
        learn_tokenizer(SMALL, spec)


def test_empty_training_texts_are_refused() -> None:
    for name in TOKENIZERS:
        tokenizer = learn_tokenizer([], name)
        assert tokenizer.decode(tokenizer.encode("any text").tolist()) == "any text"
