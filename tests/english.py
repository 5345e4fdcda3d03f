"""Real sentences for tests: some written here, the rest from documentation that every Python carries."""

from __future__ import annotations

import importlib
import inspect
import re

_WRITTEN = """
Yes.
No way!
Why?
ok
The cat sleeps on the warm window sill.
A small bakery on the corner sells bread that is still warm at seven in the morning.
It rained all night, and by dawn the river had reached the lowest step of the bridge.
Please restart the router and wait for two minutes before you try again.
Where is the nearest pharmacy that is open on Sundays?
The train to Zürich leaves from platform 7 at 14:32.
My grandmother's crème brûlée is better than any restaurant's.
El niño corrió hacia la playa con su perro.
Das Mädchen fährt jeden Tag mit dem Fahrrad zur Schule.
Ceci n'est pas une pipe.
東京は今日も雨です。
Москва не сразу строилась.
Great job, team! 🎉🚀
I love this song 😍😍
Temperature: −4 °C, wind 12 m/s, visibility good.
E = mc² is the most famous formula in physics.
Refunds are paid within five working days to the card you used.
My card was charged twice for the same order, what should I do?
How do I change the PIN of my new card?
The exchange rate shown in the app is not the one I was charged.
A man is playing a guitar on the street.
A woman is slicing an onion in the kitchen.
Two dogs run through deep snow.
Someone plays an instrument outdoors.
The stock market fell by three percent after the announcement.
Shares dropped sharply when the news became known.
The committee will meet again on 12 March 2024 to vote on the budget of €1.2 million.
Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.
Water boils at a lower temperature on high mountains because the air pressure is lower.
The mitochondrion is where most of a cell's usable energy is made.
She opened the letter, read it twice, folded it carefully, and put it back into the drawer without a word.
He said that he would come; he never did.
Turn left at the church, then follow the path along the canal until you see a red door.
The museum is free for children under twelve.
This film is far too long, but the last scene is wonderful.
Worst service ever. Cold food, rude staff, never again!
The battery lasts a whole day even with heavy use.
The screen cracked after a week.
Our hotel room was clean, quiet and close to the station.
Learning a language takes patience, practice and a good deal of courage.
What a game! Three goals in the last five minutes.
The parliament passed the law with a narrow majority.
Doctors advise at least half an hour of walking a day.
A vaccine trains the immune system to recognise a virus before it meets the real one.
The recipe needs two eggs, 200 g of flour, a pinch of salt and half a litre of milk.
Stir the sauce slowly until it thickens, then take it off the heat and let it rest.
supercalifragilisticexpialidocious
a a a a a a a a
"Quotes", (brackets), [more brackets], {braces} and <angles>; semicolons: all fine...
Visit https://www.example.org/path?query=1&lang=en for details.
Send a mail to someone@example.com with the subject "invoice 4711".
The quick brown fox jumps over the lazy dog.
Naïve café façade, coöperate, résumé, Ångström, œuvre.
Fewer rules, clearer words, shorter meetings.
Every spring the storks come back to the same chimney, as they have done for as long as anyone can remember.
The old lighthouse keeper wrote down the weather every evening for forty years, and when he died his notebooks were
""".strip().splitlines()

_MODULES = (
    "argparse", "ast", "base64", "bisect", "calendar", "collections", "configparser", "csv", "datetime", "decimal",
    "difflib", "enum", "fractions", "functools", "gzip", "heapq", "inspect", "ipaddress", "json", "logging",
    "pathlib", "random", "shutil", "statistics", "string", "tempfile", "textwrap", "threading", "uuid", "zipfile",
)  # fmt: skip


def sentences(count: int = 200) -> list[str]:
    """Distinct texts of very different lengths (1 to some 250 words), always the same for one Python version.

    >>> texts = sentences(200)
    >>> len(texts), len(set(texts))
    (200, 200)
    """
    found = dict.fromkeys(_WRITTEN)
    for name in _MODULES:
        module = importlib.import_module(name)
        for member in ["", *sorted(vars(module))]:
            value = getattr(module, member) if member else module
            text = _clean(inspect.getdoc(value) or "") if _documents_itself(value, name) else ""
            if len(text) >= 20:
                # Every third one whole, so that lengths differ by two orders of magnitude.
                found[text if len(found) % 3 == 0 else text.split(". ")[0]] = None
            if len(found) >= count:
                return list(found)[:count]
            if member and len(found) % 8 == 7:
                break
    return list(found)[:count]


def _documents_itself(value: object, module: str) -> bool:
    return inspect.ismodule(value) or (
        (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__ == module
    )


def _clean(text: str) -> str:
    return " ".join(re.sub(r"\s+", " ", text).split(" ")[:250])
