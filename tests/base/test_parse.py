"""JSON and TOML within limits: excessive depth, length and numbers are refused quickly; everything else is read."""

from __future__ import annotations

import time
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reverie.base.parse import MAX_DEPTH, MAX_LENGTH, MAX_PARTS, read_json, read_toml

REFUSED = {
    "lists": (read_json, "[" * 100_000, "nested"),
    "tables": (read_json, '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1), "nested"),
    "digits": (read_json, "1" * 401, "digits"),
    "many digits": (read_json, "1" * 100_000, "digits"),
    "cut": (read_json, '{"a": ', "Expecting value"),
    "long": (read_json, " " * MAX_LENGTH + "1", "characters"),
    "TOML lists": (read_toml, "a = " + "[" * 100_000, "nested"),
    "TOML inline tables": (read_toml, "a = " + "{a = " * 1000, "nested"),
    "TOML digits": (read_toml, "a = " + "1" * 401, "digits"),
    "TOML many digits": (read_toml, "a = " + "1" * 10_000, "digits"),
    "a dotted key": (read_toml, "a" + ".a" * 100_000 + " = 1", "nested"),
    "a dotted key in quotes": (read_toml, '"a b.c"' + ' . "a = b"' * 100_000 + " = 1", "nested"),
    "a dotted header": (read_toml, "[" + ".".join("a" * (MAX_DEPTH + 2)) + "]", "nested"),
    "headers": (read_toml, "".join(f"[a{k}]\n" for k in range(MAX_PARTS + 1)), "more than 10,000"),
    "keys": (read_toml, "".join(f"a{k}=1\n" for k in range(MAX_PARTS + 1)), "more than 10,000"),
    "a string without an end": (read_toml, 'a = """' + '\\"""' * 100_000, "not closed"),
    "no TOML": (read_toml, "= = =", "Invalid"),
}


@pytest.mark.parametrize("kind", list(REFUSED))
def test_limits_are_checked_quickly(kind: str) -> None:
    read, text, message = REFUSED[kind]
    began = time.process_time()
    with pytest.raises(ValueError, match=message):
        read(text)
    assert time.process_time() - began < 3


SIGNS = st.lists(st.sampled_from(list("ab.= \n\t[]{},#'\"\\1") + ['"""', "'''", "a = ", "[a]\n", "'x'", '"y"']), max_size=30)


@given(SIGNS)
def test_valid_texts_are_read_like_the_library(signs: list[str]) -> None:
    """The check before parsing refuses no valid text and accepts no invalid one."""
    text = "".join(signs)
    try:
        expected = tomllib.loads(text)
    except ValueError:
        with pytest.raises(ValueError):
            read_toml(text)
        return
    assert read_toml(text) == expected


def test_every_toml_syntax_is_read() -> None:
    text = 'a = "x.y # [z"\n[b.c]\nd = [1.5, 2.5] # "open\ne = """x"""""\ng = ""\nh = "a\\"b"\r\ni = {j = 1}\n'
    text += "f = '''it's'''\n"
    assert read_toml(text) == tomllib.loads(text) and read_toml(text)["b"]["c"]["h"] == 'a"b'
    labels = "labels = [\n" + "".join(f'    "a label {k}",\n' for k in range(100_000)) + "]\n"
    assert len(read_toml(labels)["labels"]) == 100_000
    assert read_json('{"a": [1, 2.5, null, "é"], "b": 18446744073709551615}') == {"a": [1, 2.5, None, "é"], "b": 2**64 - 1}
