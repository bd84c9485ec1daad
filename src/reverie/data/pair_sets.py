"""Generated pairs of texts: reversed strings, dates and numbers in words; every source is unique."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator

import numpy as np
from numpy.random import Generator

from reverie.data.text_pairs import TextPair

PairMaker = Callable[[int, Generator], list[TextPair]]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
LONGEST_STRING = 20
FIRST_DAY, LAST_DAY = datetime.date(1900, 1, 1), datetime.date(2099, 12, 31)
DIGITS = 6  # maximum digits of a number
MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
          "december")  # fmt: skip
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
ENGLISH = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
           "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")  # fmt: skip
ENGLISH_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
ENGLISH_THOUSANDS = ("", "thousand", "million")
ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
            "twelve": "twelfth", "twenty": "twentieth", "thirty": "thirtieth"}  # fmt: skip
PERSIAN = ("صفر", "یک", "دو", "سه", "چهار", "پنج", "شش", "هفت", "هشت", "نه", "ده", "یازده", "دوازده", "سیزده", "چهارده",
           "پانزده", "شانزده", "هفده", "هجده", "نوزده")  # fmt: skip
PERSIAN_TENS = ("بیست", "سی", "چهل", "پنجاه", "شصت", "هفتاد", "هشتاد", "نود")
PERSIAN_HUNDREDS = ("صد", "دویست", "سیصد", "چهارصد", "پانصد", "ششصد", "هفتصد", "هشتصد", "نهصد")
PERSIAN_THOUSANDS = ("", "هزار", "میلیون")
AND = " و "  # between the parts of a Persian number
PERSIAN_DIGITS = str.maketrans("0123456789", "۰۱۲۳۴۵۶۷۸۹")


def _groups(number: int) -> list[tuple[int, int]]:
    """Return the non-zero groups of three digits, the highest first, each with its power of a thousand."""
    groups = [((number // 1000**power) % 1000, power) for power in (2, 1, 0)]
    return [(group, power) for group, power in groups if group]


def _below_hundred(number: int) -> str:
    if number < 20:
        return ENGLISH[number]
    tens, ones = divmod(number, 10)
    return ENGLISH_TENS[tens - 2] + (f"-{ENGLISH[ones]}" if ones else "")


def english(number: int) -> str:
    """Return a number below 10⁹ in English: one hundred twenty-three thousand four."""
    words: list[str] = []
    for group, power in _groups(number):
        hundreds, rest = divmod(group, 100)
        words += [f"{ENGLISH[hundreds]} hundred"] if hundreds else []
        words += [_below_hundred(rest)] if rest else []
        words += [ENGLISH_THOUSANDS[power]] if power else []
    return " ".join(words) or ENGLISH[0]


def persian(number: int) -> str:
    """Return a number below 10⁹ in Persian: صد و بیست و سه هزار و چهار; 1000 is هزار, without a one before it."""
    parts: list[str] = []
    for group, power in _groups(number):
        hundreds, rest = divmod(group, 100)
        words = [PERSIAN_HUNDREDS[hundreds - 1]] if hundreds else []
        if rest >= 20:
            words += [PERSIAN_TENS[rest // 10 - 2]] + ([PERSIAN[rest % 10]] if rest % 10 else [])
        elif rest:
            words.append(PERSIAN[rest])
        text = AND.join(words)
        is_one_thousand = power == 1 and group == 1
        parts.append(PERSIAN_THOUSANDS[1] if is_one_thousand else f"{text} {PERSIAN_THOUSANDS[power]}".strip())
    return AND.join(parts) or PERSIAN[0]


def ordinal(number: int) -> str:
    """Return a number below 100 as an ordinal: twenty-first."""
    head, dash, last = _below_hundred(number).rpartition("-")
    return head + dash + ORDINALS.get(last, f"{last}th")


def _short_ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number not in (11, 12, 13) else "th"
    return f"{number}{ending}"


def year_in_words(year: int) -> str:
    """Return a year in spoken English: nineteen ninety-eight, nineteen oh five, two thousand seven, twenty twelve."""
    century, rest = divmod(year, 100)
    if year % 1000 < 10 and century % 10 == 0:
        return f"{ENGLISH[year // 1000]} thousand" + (f" {ENGLISH[rest]}" if rest else "")
    if not rest:
        return f"{_below_hundred(century)} hundred"
    return f"{_below_hundred(century)} " + (f"oh {ENGLISH[rest]}" if rest < 10 else _below_hundred(rest))


def _date_forms(day: datetime.date) -> tuple[str, ...]:
    """Return the written and spoken forms of a date."""
    month, name, year = MONTHS[day.month - 1], DAYS[day.weekday()], year_in_words(day.year)
    return (
        f"{day.day} {month} {day.year}", f"{month} {day.day}, {day.year}", f"{_short_ordinal(day.day)} of {month} {day.year}",
        f"the {ordinal(day.day)} of {month} {day.year}", f"{name}, {month} {_short_ordinal(day.day)}, {day.year}",
        f"{month} the {ordinal(day.day)}, {year}", f"{name} the {ordinal(day.day)} of {month} {year}",
    )  # fmt: skip


def reversal(n: int, random: Generator, lengths: tuple[int, int] = (1, LONGEST_STRING)) -> list[TextPair]:
    """Random strings of 1 to 20 letters, and the reversed string."""
    pairs: dict[str, str] = {}
    while len(pairs) < n:
        size = int(random.integers(lengths[0], lengths[1] + 1))
        text = "".join(LETTERS[k] for k in random.integers(0, len(LETTERS), size))
        pairs[text] = text[::-1]
    return list(pairs.items())


def dates(n: int, random: Generator) -> list[TextPair]:
    """Days from 1900 to 2099, in one of seven written or spoken forms, and as year-month-day; every day once."""
    count = (LAST_DAY - FIRST_DAY).days + 1
    chosen = random.permutation(count)[:n]
    days = [FIRST_DAY + datetime.timedelta(int(k)) for k in chosen]
    forms = random.integers(0, 7, len(days))
    return [(_date_forms(day)[form], day.isoformat()) for day, form in zip(days, forms, strict=True)]


def _numbers(n: int, random: Generator, sizes: tuple[int, int] = (1, DIGITS)) -> Iterator[int]:
    """Yield distinct numbers, about equally many of each number of digits while available."""
    left = {digits: 9 * 10 ** (digits - 1) + (digits == 1) for digits in range(sizes[0], sizes[1] + 1)}
    numbers: set[int] = set()
    while len(numbers) < n and any(left.values()):
        digits = int(random.choice([size for size, count in left.items() if count]))
        number = int(random.integers(0 if digits == 1 else 10 ** (digits - 1), 10**digits))
        if number not in numbers:
            numbers.add(number)
            left[digits] -= 1
            yield number


def english_numbers(n: int, random: Generator, sizes: tuple[int, int] = (1, DIGITS)) -> list[TextPair]:
    """Numbers up to 999,999 in English words, and in digits."""
    return [(english(number), str(number)) for number in _numbers(n, random, sizes)]


def persian_numbers(n: int, random: Generator, sizes: tuple[int, int] = (1, DIGITS)) -> list[TextPair]:
    """Numbers up to 999,999 in Persian words, and in Persian digits."""
    return [(persian(number), str(number).translate(PERSIAN_DIGITS)) for number in _numbers(n, random, sizes)]


PAIR_SETS: dict[str, PairMaker] = {
    "reversal": reversal,
    "dates": dates,
    "numbers-en": english_numbers,
    "numbers-fa": persian_numbers,
}
DEFAULT_COUNTS = {"reversal": 50_000, "dates": 20_000, "numbers-en": 20_000, "numbers-fa": 20_000}  # default counts
# Makers of sources longer than those in training, for datasets that have such sources.
LONGER: dict[str, PairMaker] = {
    "reversal": lambda n, random: reversal(n, random, (LONGEST_STRING + 1, 2 * LONGEST_STRING)),
    "numbers-en": lambda n, random: english_numbers(n, random, (DIGITS + 1, 9)),
    "numbers-fa": lambda n, random: persian_numbers(n, random, (DIGITS + 1, 9)),
}


def longer_pairs(name: str, n: int, seed: int, than: int) -> list[TextPair]:
    """Return up to n pairs whose sources are longer than `than` characters; none for datasets without longer sources."""
    if name not in LONGER:
        return []
    return [pair for pair in LONGER[name](n, np.random.default_rng([seed, than])) if len(pair[0]) > than]
