"""Advice: what to do next, and what is to be said of the data; a report begins with it, after its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isfinite

from ileed.demonstrations import Demonstrations
from ileed.fitted import Fitted
from ileed.report.episodes import Episodes
from ileed.report.kinds import PeopleByKind
from ileed.report.people import Person
from ileed.report.text import between, decimal, enumerated, say, short
from ileed.wording import printable

_PAIRS, _PRACTICE, _LOOK, _FINDINGS = 2, 2, 4, 5
_FEW = 5  # episodes of a person below which little is known of how they differ
_MOST_EPISODES = 500  # of one person: to ask for more is no advice


def next_steps(
    fitted: Fitted, people: Sequence[Person], kinds: PeopleByKind | None, episodes: Episodes | None
) -> list[tuple[str, str]]:
    """What to do next: a word for the kind of advice, and a sentence."""
    ratings = fitted.expertise.ratings
    tells_skill = ratings is None or ratings.by.orders_by_skill
    advice = [] if tells_skill else [("Add", say("advice_outcomes"))]
    advice += [("Ask", text) for text in _ask_for_more(fitted, people)]
    if kinds is not None and tells_skill and not (ratings is not None and ratings.not_identified):
        advice += [("Train", text) for text in _train(kinds)]
    if episodes is not None:
        if look := episodes.low_for_them:
            which = enumerated([episodes.label(each) for each in look], most=_LOOK)
            advice.append(("Look", say("advice_look", which=which, lie="lies" if len(look) == 1 else "lie")))
        else:
            advice.append(("Look", say("advice_look_lowest", which=episodes.label(episodes.lowest))))
        drop, count = episodes.to_drop, len(episodes.people)
        if not tells_skill:
            advice.append(("Keep", say("advice_keep_unrated")))
        elif drop:
            advice.append(("Drop", say("advice_drop", drop=f"{len(drop):,}", count=f"{count:,}")))
        else:
            advice.append(("Keep", say("advice_keep")))
    return advice or [("Keep", say("advice_nothing"))]


def _train(kinds: PeopleByKind) -> list[str]:
    """Who is clearly below the best in all kinds of state, and of the others in which."""
    gaps, everywhere = kinds.gaps()
    told = []
    if everywhere:
        told.append(say("advice_train_all", who=enumerated([short(person.label) for person in everywhere])))
    for gap in gaps[:_PRACTICE]:
        own = f"{decimal(gap.expertise)} ({between(gap.low, gap.high)})"
        words = {"who": short(gap.person.label), "kind": gap.kind, "own": own, "best": decimal(gap.best)}
        told.append(say("advice_train", **words))
    return told


def _ask_for_more(fitted: Fitted, people: Sequence[Person]) -> list[str]:
    """Whose further episodes would settle an open question: neighbours at the top who cannot be told apart."""
    ratings = fitted.expertise.ratings
    ranked = [person for person in people if person.rated is not None]
    if ratings is None or len(ranked) < 2:
        return []
    names = fitted.expertise.names
    open_pairs = []
    for one, other in pairwise(ranked[:50]):
        more = ratings.episodes_to_settle(names[one.index], names[other.index])
        if 0 < more <= _MOST_EPISODES and isfinite(more):
            open_pairs.append((more, one, other))
    if not open_pairs:
        few = [short(person.label) for person in ranked if (person.episodes or _FEW) < _FEW]
        return [say("advice_ask_few", who=enumerated(few), few=_FEW)] if few else []
    best = sorted(open_pairs, key=lambda pair: (pair[1].rank > 3, pair[0]))[:_PAIRS]
    return [
        say(
            "advice_ask",
            one=short(one.label),
            other=short(other.label),
            more=f"{int(more):,}",
            s="s" if more > 1 else "",
        )
        for more, one, other in best
    ]


def quality(fitted: Fitted, people: Sequence[Person], data: Demonstrations | None) -> list[str]:
    """What is to be said of the data: the findings of `check`, or what the run tells without them."""
    steps = [person.steps for person in people if person.steps is not None]
    told = []
    if steps:
        span = f"{min(steps):,}" if min(steps) == max(steps) else f"{min(steps):,} to {max(steps):,}"
        told.append(say("quality_steps", span=span))
    unranked = [person.label for person in people if not person.is_ranked]
    if unranked and fitted.estimates_expertise:
        told.append(say("quality_unranked", who=enumerated([short(each) for each in unranked])))
    if data is None:
        return [*told, say("quality_no_data")]
    if data.fingerprint() != fitted.provenance["data"].get("fingerprint"):
        told.append(say("quality_other_data"))
    found = _findings(data)
    if not found:
        return [*told, say("quality_good")]
    more = [say("quality_more", count=len(found) - _FINDINGS)] if len(found) > _FINDINGS else []
    return [*told, *found[:_FINDINGS], *more]


def _findings(data: Demonstrations) -> list[str]:
    """What `check` finds, in one sentence where it finds the same of several."""
    alike: dict[str, list[tuple[str, str]]] = {}
    for each in data.check():
        fact, colon, why = printable(each.says).partition(": ")
        alike.setdefault(why if colon else fact, []).append((printable(short(each.about, 40)), fact if colon else ""))
    told = []
    for why, found in alike.items():
        if len(found) == 1:
            told.append(f"{found[0][0]}: {': '.join(filter(None, (found[0][1], why)))}.")
        else:
            subjects = [f"{about} ({fact})" if fact else about for about, fact in found]
            told.append(f"{enumerated(subjects, most=3)}: {why}.")
    return told
