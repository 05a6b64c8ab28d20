"""A small text of our own, from which prompts of any length are cut; a user may give a larger one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tinyllm.errors import InputError

TEXT: Final = """\
The harbour master kept two books. In the first he wrote the name of every ship on the day it was sighted from the
lighthouse; in the second, the day on which it was given a berth. Between the two dates lay the whole art of his
office. A harbour with more berths than ships needs no master at all, and a harbour with more ships than berths
needs one who can say why the grain barge went in before the timber brig, although the brig had been waiting since
Tuesday.

His predecessor had followed a simple rule: first sighted, first berthed. Nobody could quarrel with it, and everybody
did. A fishing boat with six crates of herring waited three days behind a freighter that took a week to unload, and
by then the herring could be smelled in the market square. So the new master tried the opposite. He asked each
captain how long the unloading would take, and let the shortest in first. The fishermen were delighted. The
freighters, however, discovered that there was always one more small boat on the horizon, and one of them lay at
anchor until the barnacles had names.

He learned that captains are poor judges of their own cargo. Some said two hours and took nine; some said nine and
were gone by noon. He began to keep a third book, in which he compared what they had promised with what they had
done, and found that the errors had a shape: short jobs were guessed well, long ones badly, and the longest were
guessed by people who had stopped counting. He did not throw the guesses away. A bad map is still better than no
map, provided that you know which way it is bad.

In the winter the merchants complained that one family owned half of the ships in the bay, and that whenever two
berths came free, both went to the same name. The master drew a line down the page for each family and made a mark
for every hour that its ships had been served. The family with the fewest marks went next. When a family that had
been away all autumn came back, it did not find its column empty: he had moved its mark up to the lowest of those
who had been waiting, since an absent customer has saved up nothing. There were still complaints, but they were
shorter, and they cancelled one another out.

The pilots taught him about space. A berth is a length of quay, and a long ship takes three of them at once. If he
let in every small boat that fitted, the quay filled with gaps in which nothing large could ever lie. Once he let
in a collier on the promise that the coaster next to it would leave on the evening tide; the coaster did not leave,
the collier's stern blocked the channel, and one of the two had to be towed out again half unloaded. What had been
unloaded already was of no use to anyone, and had to be carried twice. After that he always kept a little of the
quay free, and wrote down every tow.

Visitors asked him for the best rule. He would show them the books instead. For any rule, he said, you may choose
what it is good at: the average ship, the unlucky ship, the quiet customer, the tide table, or the peace of the
taverns. If you do not choose, the rule chooses for you, and it will not tell you what it chose. The only honest
way was to take last year's sightings, with every ship at its true hour, and to berth them again on paper under
each rule in turn, counting how long every one of them would have waited. It took him eleven evenings, a great deal
of lamp oil and one argument with his wife. In the twelfth he compared the paper with the quay itself on an ordinary
Wednesday, and where the two disagreed he mended the paper.

Question: a quay has twelve places; a barge takes one, a brig two and a freighter four. On Monday five barges, two
brigs and one freighter are sighted in that order. Which of them can lie at the quay together, and which of them has
to wait if they are berthed in the order of sighting? Answer: the five barges take five places, the two brigs take
four more, which makes nine; the freighter needs four and only three are left, so it waits until one barge has gone.

def berths_needed(ships, lengths):
    total = 0
    for ship in ships:
        total += lengths[ship]
    return total

The list of instruments in the signal tower, as of the first of March: one brass telescope, 40 mm; two barometers,
of which one reads 3.5 too high; seventeen flags, among them four that nobody remembers the meaning of; a clock that
gains ninety seconds a day; ink, both colours; and a cat, which is not an instrument but is listed every year, so
that the sums agree with those of 1887, 1904 and 1926.
"""


def corpus_text(path: Path | None = None) -> str:
    """The user's text, or ours.

    Raises:
        InputError: the file can't be read as text.
    """
    if path is None:
        return TEXT
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"--corpus {path}: cannot be read as text ({error}); give a plain UTF-8 file"
        ) from None
