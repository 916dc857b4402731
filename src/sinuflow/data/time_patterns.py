"""Patterns of dates and times, in the directives of strftime."""

from __future__ import annotations

import re
from collections.abc import Iterator

_MONTHS = [
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
]
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
#: Names by directive; texts may have them in other cases.
NAMES = {
    "%B": _MONTHS,
    "%b": [name[:3] for name in _MONTHS],
    "%A": _DAYS,
    "%a": [name[:3] for name in _DAYS],
    "%p": ["AM", "PM"],
    "%P": ["am", "pm"],
}
_ZONE = r"\s?(?:Z|UTC|GMT|[+-](?:0[0-9]|1[0-4])(?::?[0-5][0-9])?)"
#: Regular expressions of directives, which mean what they mean to strftime; %-d is %d without zeros before it.
DIRECTIVES = {
    "%Y": "[0-9]{4}",
    "%y": "[0-9]{2}",
    **dict.fromkeys(("%m", "%d", "%H", "%I"), "[0-9]{1,2}"),
    "%M": "[0-9]{2}",
    "%S": "[0-9]{2}",
    "%f": "[0-9]{1,9}",
    "%z": _ZONE,
    **{directive: f"(?i:{'|'.join(names)})" for directive, names in NAMES.items()},
}
_TOKEN = re.compile("%-?[a-zA-Z]|[^%]")
_CLOCK = re.compile(
    r"[0-9]{1,2}:[0-9]{2}(?P<second>:[0-9]{2}(?P<fraction>[.,][0-9]{1,9})?)?"
    rf"(?P<half>\s?[AaPp][Mm])?(?P<zone>{_ZONE})?"
)
#: Dates with the month in digits; slashes and hyphens leave open whether the day or the month comes first.
DATES = [
    *("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%Y-%m", "%Y/%m", "%m/%Y", "%m-%Y", "%d.%m.%Y", "%d.%m.%y"),
    *(f"{a}{mark}{b}{mark}{y}" for mark in "/-" for a, b in (("%d", "%m"), ("%m", "%d")) for y in ("%Y", "%y")),
    *(pattern.replace(" ", mark) for pattern in ("%d %b %Y", "%b %Y", "%Y %b %d", "%Y %b") for mark in " -/"),
    *("%d%b%Y", "%d%b%y", "%d-%b-%y", "%d %b %y", "%d. %b %Y", "%b %d, %Y", "%b %d %Y", "%b-%y", "%b %y"),
]
#: Two-digit years come first only where nothing else fits.
LAST_RESORT = ["%y-%m-%d", "%y/%m/%d"]
#: Directives of dates.
OF_DATES = {"%Y", "%y", "%m", "%b", "%B", "%d", "%a", "%A"}


def tokens_of(pattern: str) -> list[str]:
    """The directives and other characters of a pattern."""
    return _TOKEN.findall(pattern)


def regex(tokens: list[str]) -> str:
    """The regular expression of a pattern, with a group for each directive; decimals may be missing."""
    parts: list[str] = []
    for token in tokens:
        directive = token.replace("-", "") if len(token) > 1 else token
        known = DIRECTIVES.get(directive)
        group = f"(?P<{directive[1:]}>{known})"
        if directive == "%f":
            parts[-1] = f"(?:{parts[-1]}{group})?"
        else:
            parts.append(re.escape(token) if known is None else group)
    return "".join(parts)


def patterns(example: str, dates: list[str]) -> Iterator[str]:
    """The patterns of strftime that fit a text."""
    clock = _CLOCK.search(example)
    if clock is None:
        yield from _date_patterns(example, dates)
        return
    half = clock["half"] or ""
    pattern = ("%I" if half else "%H") + ":%M" + (":%S" if clock["second"] else "")
    pattern += f"{clock['fraction'][0]}%f" if clock["fraction"] else ""
    pattern += half[:-2] + ("%P" if half.islower() else "%p") if half else ""
    before, after = example[: clock.start()], example[clock.end() :]
    zone = "%z" if clock["zone"] else ""
    if not before and not after and not zone:
        yield pattern
    elif not after and (joint := re.search(r"(T|,?\s+)$", before)):
        for date in _date_patterns(before[: joint.start()], dates):
            yield f"{date}{joint[0]}{pattern}{zone}"
    elif not before and (joint := re.match(r",?\s+", after)):
        for date in _date_patterns(after[joint.end() :], dates):
            yield f"{pattern}{zone}{joint[0]}{date}"


def _date_patterns(example: str, dates: list[str]) -> Iterator[str]:
    weekday = re.match(rf"(?i:({'|'.join(_DAYS)})|{'|'.join(NAMES['%a'])})(,?\s+)", example)
    start = ("%A" if weekday[1] else "%a") + weekday[2] if weekday else ""
    for date in dates:
        for pattern in dict.fromkeys((date, date.replace("%b", "%B"))):
            if re.fullmatch(regex(tokens_of(start + pattern)), example):
                yield start + pattern
