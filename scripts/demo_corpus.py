"""The training text of the demo model: stories cut out of plain-text books, and requests made from the stories.

A book is one paragraph per line block, a blank line between paragraphs, titles as short paragraphs of their own (see the
corpus's SOURCES.md). Everything here is deterministic for a given seed.
"""

import re
from pathlib import Path

END = "<|endoftext|>"
TURN = "<|im_start|>"
END_OF_TURN = "<|im_end|>"
SPECIAL_TOKENS = [END, TURN, END_OF_TURN]

# Whole works that no model sees in training. tests/data/held-out.txt is made of the first two.
HELD_OUT = [
    "baum-kidnapped-santa-claus.txt",
    "wilde-happy-prince.txt",
    "ruskin-king-of-the-golden-river.txt",
    "baum-wonderful-wizard-of-oz.txt",
]

# Books of short tales, told simply: what a small model learns best from. The others are novels and myths.
_TALES = re.compile(r"aesop|alcott|andersen|baum|grimm|jacobs|lang-|linderman|light-princess|mclaughlin|parker|perrault|potter|wilde|zitkala")

# Words in capitals with which some books begin a story.
_CAPITALS = re.compile(r"^[A-Z]['A-Z]*[A-Z](?: [A-Z'-]+)*(?=,? [a-z])|^[AI] [A-Z][A-Z-]+(?: [A-Z'-]+)*(?=,? [a-z])", re.MULTILINE)

# Words that begin a paragraph like the beginning of a tale, not like its continuation.
_OPENING = re.compile(
    r"(Once|There (was|were|lived|once|is)|One (day|night|morning|evening|summer|winter)|Long ago|In (the|a|an|old|olden|ancient)\b"
    r"|Many (years|hundred)|A |An |Far |At (the|a) |Two |Three |Some )"
)
_NOUN_PHRASE = re.compile(r"\b(?i:a|an|the|his|her) ([A-Za-z]{3,12})\b(?!-)(.{0,12})")
# What may follow a noun: the end of a phrase, or a word that starts another.
_AFTER_NOUN = re.compile(r"[,.;:!?']| (and|was|had|of|said|who|that|in|to|is|with|came|went|on|at|could|would|named|called|which|saw)\b")
# Nouns that do not name a subject for a story.
_DULL = set(
    "time day way same other one place thing things moment end rest first last next whole side middle very little great morning evening "
    "night part face head hand hands eyes feet heart days years year hour hours least most more better best sight sound voice word words "
    "matter case reason manner kind sort number half top back front bottom edge mind door ground air life fact name order means people "
    "others another truth long good most sake midst use meantime while sign turn again also alone away cause pause account act age aid "
    "answer fear hope idea deal bit pair piece lot reply question result effect effort offer attempt approach arrival appetite advice".split()
)
_ABSTRACT = re.compile(r"([^s]s|ed|...ing|ment|tion|sion|ness|ance|ence|ity|sure|ure|age|ship|th|ble|ful|ly|est)$")


def books(folder, held_out=False):
    """Name and text of each book: those to train on, or those held out."""
    for path in sorted(Path(folder).glob("*.txt")):
        if (path.name in HELD_OUT) == held_out:
            text = path.read_text(encoding="utf-8").strip()
            yield path.name, _CAPITALS.sub(lambda match: match.group().capitalize(), text)


def is_tales(name):
    """Whether a book is one of short tales."""
    return bool(_TALES.search(name))


def is_short_tales(name):
    """Whether a book's tales are short enough to be answers."""
    return is_tales(name) and not name.startswith(("baum", "alcott"))


def is_title(paragraph):
    """A short line without the end of a sentence, in capitals or with most words capitalized."""
    if len(paragraph) > 70 or "\n" in paragraph or re.search(r'["!?:;,-]$|[a-z]\.$', paragraph):
        return False
    words = [w for w in re.findall(r"[A-Za-z']+", paragraph) if len(w) > 3]
    return bool(words) and sum(w[0].isupper() for w in words) >= 0.8 * len(words) and paragraph[0].isupper()


def stories(text):
    """The book in parts, (title, paragraphs); the title is empty where a part has none."""
    title, paragraphs = "", []
    for paragraph in text.split("\n\n"):
        if is_title(paragraph):
            if paragraphs:
                yield title, paragraphs
            title, paragraphs = paragraph, []
        elif paragraph.strip():
            paragraphs.append(paragraph.strip())
    if paragraphs:
        yield title, paragraphs


def nouns_of(texts):
    """The words that are mostly nouns, i.e. follow an article and end its phrase."""
    seen, ends = {}, {}
    for text in texts:
        for word, after in _NOUN_PHRASE.findall(text):
            word = word.lower()
            seen[word] = seen.get(word, 0) + 1
            if _AFTER_NOUN.match(after):
                ends[word] = ends.get(word, 0) + 1
    return {w for w, n in seen.items() if n >= 12 and ends.get(w, 0) > 0.4 * n and w not in _DULL and not _ABSTRACT.search(w)}


def characters(passage, nouns, most=3):
    """What a passage is about: nouns from its beginning, repeated ones first."""
    beginning = passage[:400]
    found = {}
    for word, _ in _NOUN_PHRASE.findall(beginning):
        word = word.lower()
        if word in nouns and word not in found:
            found[word] = len(re.findall(rf"\b{word}\b", passage, re.IGNORECASE))
    return sorted(found, key=lambda w: -found[w])[:most]


def passages(paragraphs, least, most):
    """Tales of `least` to `most` characters: from a paragraph that opens as tales do (or the story's first) to the end of
    a later one."""
    at = 0
    while at < len(paragraphs):
        if at > 0 and not _OPENING.match(paragraphs[at]):
            at += 1
            continue
        end, size = at, 0
        while end < len(paragraphs) and size + len(paragraphs[end]) <= most:
            size += len(paragraphs[end]) + 2
            end += 1
        while end > at and not paragraphs[end - 1].endswith((".", "!", "?", '"', "'")):
            end -= 1
            size -= len(paragraphs[end]) + 2
        if size >= least:
            yield "\n\n".join(paragraphs[at:end])
        at = max(end, at + 1)


def _with_article(noun):
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def request(title, passage, nouns, random):
    """A request that the passage answers, and the answer."""
    about = characters(passage, nouns)
    kind = random.random()
    if about and kind < 0.75:
        phrase = " and ".join(_with_article(w) for w in about[: random.choice([1, 2, 2, 2, 3])])
        if phrase.count(" and ") == 2:
            phrase = phrase.replace(" and ", ", ", 1)
        form = random.choice(
            ["Tell me a story about {}."] * 4
            + ["Tell me a tale about {}.", "Write a short story about {}.", "tell me a story about {}", "I want to hear about {}.",
               "Please tell me a story about {}.", "A story about {}, please.", "Do you know a tale of {}?"]
        )
        return form.format(phrase), passage
    if title and kind < 0.85:
        name = title.rstrip(".").title() if title.isupper() else title.rstrip(".")
        return random.choice(["Tell me the story of {}.", "Tell me about {}.", "{}"]).format(name), passage
    first = re.match(r".{20,160}?[.!?]\s", passage)
    if first and kind < 0.93 and len(passage) - first.end() > 200:
        form = random.choice(["Go on with this story: {}", "Continue: {}", "{}"])
        return form.format(first.group().strip()), passage[first.end():].strip()
    return random.choice(["Tell me a story.", "Tell me a short tale.", "Hello!", "Another story, please.", "Hello, who are you?"]), passage


def conversation(pairs):
    """The text of requests and answers as the chat template writes them."""
    turns = "".join(
        f"{TURN}user\n{asked}{END_OF_TURN}\n{TURN}assistant\n{answer}{END_OF_TURN}\n" for asked, answer in pairs
    )
    return END + turns


def plain_text(text):
    """A book as a model reads it: stories one after the other, each begun by the end-of-text token."""
    return "".join(END + (title + "\n\n" if title else "") + "\n\n".join(paragraphs) for title, paragraphs in stories(text))


def conversations(texts, random, least=220, most=1300):
    """Conversations of one or two short tales, from all the books, in random order. Both turns are requests of the same kind."""
    nouns = nouns_of(texts)
    pairs = []
    for text in texts:
        for title, paragraphs in stories(text):
            for number, passage in enumerate(passages(paragraphs, least, random.randint(least + 200, most))):
                pairs.append(request(title if number == 0 else "", passage, nouns, random))
    random.shuffle(pairs)
    result, at = [], 0
    while at < len(pairs):
        turns = 2 if random.random() < 0.15 else 1
        result.append(conversation(pairs[at : at + turns]))
        at += turns
    return result
