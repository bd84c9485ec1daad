"""Sources of named components: authors and year of each arXiv number in their docstrings."""

from __future__ import annotations

import re

PAPERS: dict[str, str] = {  # arXiv number -> authors and year
    "1305.6663": "Bengio et al. 2013", "1308.0850": "Graves 2013", "1312.6114": "Kingma and Welling 2013",
    "1409.3215": "Sutskever et al. 2014", "1503.03585": "Sohl-Dickstein et al. 2015", "1505.04597": "Ronneberger et al. 2015",
    "1508.07909": "Sennrich et al. 2015", "1511.01844": "Theis et al. 2015",
    "1511.06349": "Bowman et al. 2015", "1602.02282": "Sønderby et al. 2016",
    "1605.02226": "Uria et al. 2016", "1610.06545": "Lopez-Paz and Oquab 2016", "1706.00292": "Genevay et al. 2017",
    "1706.03762": "Vaswani et al. 2017", "1706.08500": "Heusel et al. 2017", "1708.07747": "Xiao et al. 2017",
    "1801.01401": "Bińkowski et al. 2018", "1810.01367": "Grathwohl et al. 2018", "1904.06991": "Kynkäänniemi et al. 2019",
    "1905.10887": "Ravuri and Vinyals 2019", "1905.11946": "Tan and Le 2019", "1907.05600": "Song and Ermon 2019",
    "1912.02762": "Papamakarios et al. 2019", "2002.09797": "Naeem et al. 2020", "2006.11239": "Ho et al. 2020",
    "2010.02502": "Song et al. 2020", "2011.13456": "Song et al. 2020", "2102.09672": "Nichol and Dhariwal 2021",
    "2105.13626": "Xue et al. 2021", "2107.00630": "Kingma et al. 2021", "2112.10752": "Rombach et al. 2021",
    "2201.09865": "Lugmayr et al. 2022", "2201.11793": "Kawar et al. 2022", "2202.00512": "Salimans and Ho 2022",
    "2202.09778": "Liu et al. 2022", "2206.00364": "Karras et al. 2022", "2206.00927": "Lu et al. 2022",
    "2208.11970": "Luo 2022", "2209.03003": "Liu et al. 2022", "2209.14687": "Chung et al. 2022",
    "2211.01095": "Lu et al. 2022", "2212.03860": "Somepalli et al. 2022", "2212.09748": "Peebles and Xie 2022",
    "2212.11972": "Jabri et al. 2022", "2302.04867": "Zhao et al. 2023", "2303.00848": "Kingma and Gao 2023",
    "2303.09556": "Hang et al. 2023", "2305.08891": "Lin et al. 2023", "2306.04848": "Permenter and Yuan 2023",
    "2311.17919": "Geng et al. 2023", "2312.02696": "Karras et al. 2023", "2403.03206": "Esser et al. 2024",
    "2405.13712": "Rozet et al. 2024",
}  # fmt: skip

ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
GROUP = re.compile(r"\s*\(((?=[^()]*(?:arXiv:\d|[A-Z][\w-]+ (?:et al\. )?(?:19|20)\d\d\b))[^()]*(?:\([^()]*\)[^()]*)*)\)")


def cite(reference: str) -> str:
    """Return a reference with the authors of every arXiv number in it."""
    reference = f"arXiv:{reference}" if reference in PAPERS else reference
    return ARXIV.sub(lambda match: f"{PAPERS[match[1]]}, {match[0]}" if match[1] in PAPERS else match[0], reference)


def split_source(text: str) -> tuple[str, str | None]:
    """Return a description without its reference in parentheses, and the reference with authors; None if it has none."""
    citation = GROUP.search(text)
    if citation is None:
        numbers = ARXIV.search(text)
        return text, cite(numbers[0]) if numbers else None
    return text[: citation.start()] + text[citation.end() :], cite(citation[1])
