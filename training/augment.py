"""Phrasing noise: turns one training phrasing into the many ways a person might type it.

The measured quality is the answer to phrasings never seen, so this is where the training signal is.
Every reduction of a phrasing (dropped words, bags of key words) is kept only if the words that
remain still point to the same item, and nothing that equals a held-out phrasing (without case and
punctuation) ever leaves `Rephraser.rephrase`.
"""

import math
import random
import re
from collections import Counter

from training.bank import Bank, Item, phrasing_key, words_of

_STOP_TEXT = (
    "a an the is are was be been am do does did of to in on at for with by from as and or it its"
    " this that these those there i you me my your we can could would should will shall may might"
    " please so just about really actually some any then than into have has had get"
)
STOP_WORDS = frozenset(_STOP_TEXT.split())
# Openings that ask for the same thing; a phrasing that opens with one may open with another.
# fmt: off
STEMS = (
    (
        "what is", "what's", "whats", "what exactly is", "define", "explain", "tell me about",
        "describe", "can you explain", "meaning of", "what do you know about",
        "give me the definition of", "i want to know about", "can you tell me what is",
        "please explain", "could you describe", "help me understand", "what do people mean by",
        "what is meant by", "talk to me about",
    ),
    (
        "what are", "what're", "define", "explain", "tell me about", "describe", "what exactly are",
        "can you explain", "talk about",
    ),
    (
        "how does", "how do", "explain how does", "in what way does", "how exactly does",
        "tell me how does", "can you explain how does",
    ),
    (
        "how do i", "how can i", "how should i", "what is the way to", "how to", "how would i",
        "what do i do to", "how do you", "how do we",
    ),
    (
        "why is", "why's", "how come", "what makes", "for what reason is", "what is the reason",
        "explain why", "tell me why is",
    ),
    (
        "why do", "why does", "how come", "for what reason do", "explain why", "what is the reason",
        "tell me why",
    ),
    ("how much", "how many", "what amount of", "roughly how much", "about how much"),
    (
        "what happens when", "what happens if", "what if", "what occurs when",
        "tell me what happens when", "what goes on when",
    ),
    (
        "should i", "do i need to", "is it worth to", "is it good to", "when should i", "would you",
        "ought i to",
    ),
    (
        "can i", "can you", "is it possible to", "am i able to", "could i", "is there a way to",
        "can one", "can we",
    ),
    (
        "difference between", "what is the difference between", "compare", "how differ",
        "what distinguishes", "contrast",
    ),
)
SYNONYMS = {
    "llm": ("language model", "large language model", "llms"),
    "gpu": ("graphics card", "accelerator", "video card", "gpus"), "memory": ("ram", "vram", "mem"),
    "fast": ("quick", "speedy", "rapid"), "faster": ("quicker", "speedier", "more quickly"),
    "slow": ("sluggish", "slower"), "difference": ("distinction", "differences"),
    "big": ("large", "huge", "great"), "large": ("big", "huge"), "small": ("little", "tiny"),
    "bigger": ("larger", "greater"), "smaller": ("lower", "less"),
    "works": ("functions", "operates"), "work": ("function", "operate"),
    "use": ("utilise", "employ", "apply", "using"), "used": ("employed", "applied"),
    "need": ("require", "want"), "needs": ("requires", "takes"),
    "choose": ("pick", "select", "decide on", "set"),
    "reduce": ("lower", "cut", "decrease", "shrink", "save"),
    "increase": ("raise", "grow", "boost"), "improve": ("better", "boost", "enhance"),
    "important": ("vital", "crucial", "essential"), "help": ("aid", "assist", "benefit"),
    "helps": ("benefits", "aids"), "make": ("build", "create", "produce", "write"),
    "request": ("query", "call", "requests"), "requests": ("queries", "calls", "request"),
    "user": ("client", "customer", "person"), "users": ("clients", "customers", "people"),
    "happens": ("occurs", "goes on", "takes place"), "show": ("display", "print", "see"),
    "mean": ("signify", "stand for"), "vs": ("versus", "or", "compared to", "against"),
    "compare": ("contrast", "comparison of"), "inference": ("serving", "running", "generation"),
    "cost": ("price", "expense", "spend"), "cheap": ("inexpensive", "low cost"),
    "best": ("optimal", "ideal", "right"),
    "calculate": ("compute", "work out", "estimate", "figure out"),
    "number": ("count", "amount", "how many"), "start": ("begin", "launch", "run", "boot"),
    "stop": ("end", "halt", "quit", "cancel"), "run": ("execute", "launch", "start"),
    "problem": ("issue", "trouble", "bug"), "way": ("method", "approach", "manner"),
    "maximum": ("max", "largest", "upper limit of"),
    "explain": ("describe", "clarify", "walk me through"), "limit": ("cap", "bound", "restrict"),
    "latency": ("delay", "waiting time", "response time"),
    "throughput": ("tokens per second", "rate"), "wait": ("queue", "hang"),
    "waiting": ("queued", "pending"), "long": ("lengthy", "large"), "short": ("brief", "small"),
    "answer": ("reply", "response", "output"), "text": ("words", "string"),
    "word": ("term", "token"), "tokens": ("token",), "prompt": ("input", "prompts"),
    "output": ("generated text", "result"), "generate": ("produce", "write", "create"),
    "predict": ("guess", "forecast"), "store": ("keep", "save", "hold"),
    "load": ("read", "fetch", "traffic"), "move": ("transfer", "send", "copy"),
    "send": ("transmit", "pass"), "share": ("reuse", "split"), "batch": ("batches", "group"),
    "weights": ("parameters", "params"), "precision": ("bits", "number format"),
    "accuracy": ("quality", "correctness"), "quality": ("accuracy",),
    "random": ("stochastic", "chance"), "probability": ("chance", "likelihood"),
    "engine": ("server", "system", "runtime"), "server": ("service", "backend", "engine"),
    "machine": ("computer", "box", "host"), "cpu": ("processor",),
    "setup": ("install", "configuration"), "configure": ("set", "set up"),
    "setting": ("option", "flag", "parameter"), "option": ("flag", "setting"),
    "flag": ("option", "switch"), "cache": ("caching", "cached"),
    "error": ("failure", "problem", "fault"), "fail": ("crash", "break"), "crash": ("fail", "die"),
    "check": ("verify", "test", "inspect"), "measure": ("benchmark", "gauge", "time"),
    "metric": ("measure", "number"), "monitor": ("watch", "observe", "track"),
    "scale": ("grow", "expand"), "schedule": ("plan", "order"),
    "multiple": ("several", "many", "more than one"), "many": ("several", "lots of", "multiple"),
    "different": ("distinct", "various"), "same": ("identical", "equal"),
    "good": ("great", "useful", "fine"), "bad": ("poor", "terrible"),
    "purpose": ("goal", "point", "role"), "reason": ("cause", "why"),
    "benefit": ("advantage", "gain", "pro"), "advantages": ("benefits", "pros"),
    "disadvantages": ("drawbacks", "downsides", "cons"), "tradeoff": ("trade-off", "compromise"),
    "example": ("instance", "case"), "simple": ("easy", "basic"), "hard": ("difficult", "tough"),
    "support": ("handle", "allow", "accept"), "list": ("show", "enumerate"),
    "compress": ("shrink", "squeeze"), "quantisation": ("quantization", "quantizing"),
    "quantization": ("quantisation", "quantizing"), "chat": ("conversation", "talk"),
    "remember": ("recall", "memorise"), "trained": ("taught", "learned"), "job": ("task", "work"),
    "joke": ("gag", "something funny"), "tell": ("give", "say"),
    "give": ("tell", "provide", "show"), "like": ("enjoy", "love"), "buy": ("purchase", "get"),
    "company": ("firm", "business"), "bandwidth": ("memory speed", "throughput"),
    "speed": ("performance", "velocity", "pace"), "size": ("dimension", "how big"),
    "space": ("room", "memory"), "full": ("filled", "exhausted"), "free": ("release", "available"),
    "evict": ("remove", "drop", "throw out"), "remove": ("delete", "drop"),
    "split": ("divide", "partition", "shard"), "across": ("over", "between"),
    "layer": ("layers", "block"), "replica": ("copy", "instance"),
    "network": ("link", "connection"), "per": ("for each", "each"), "each": ("every", "per"),
    "before": ("ahead of", "prior to"), "after": ("following",), "without": ("lacking", "with no"),
    "about": ("regarding", "on"), "today": ("now", "right now"), "kind": ("type", "sort"),
    "type": ("kind", "sort"), "part": ("piece", "component"), "step": ("iteration", "pass"),
    "first": ("initial",), "last": ("final", "latest"), "total": ("overall", "whole"),
    "typical": ("usual", "common", "normal"), "format": ("form", "layout"),
    "structure": ("layout", "organisation"), "code": ("program", "script"),
}
PREFIXES = (
    "please", "can you tell me", "hey,", "hi,", "quick question:", "hello,", "ok,", "so", "um",
    "question:", "i was wondering,", "tell me,", "could you tell me", "i'd like to know",
    "one more thing:", "just curious,", "hey pilot,", "pilot,", "now", "and", "also", "ok so",
    "well,", "help:", "i need to know", "sorry,", "can you explain", "do you know",
    "i have a question.", "please tell me", "in your words,", "Q:", "hm,", "someone asked me",
    "for my homework:", "btw", "my colleague asks:", "right,", "next question:", "good morning,",
)
SUFFIXES = (
    "please", "thanks", "thank you", "in your view", "exactly", "in detail", "in simple terms",
    "for a beginner", "briefly", "then", "anyway", "pls", "do you know", "in practice", "again",
    "if you can", "i wonder", "for me", "to me", "in plain words", "in general", "here", "actually",
)
# fmt: on
_TOKEN = re.compile(r"\S+")
# Each opening with the groups that hold it, the longest first, so that 'how do i' is tried before
# 'how do'.
_STEMS_BY_LENGTH = tuple(
    (stem, tuple(i for i, group in enumerate(STEMS) if stem in group))
    for stem in sorted({s for group in STEMS for s in group}, key=lambda s: (-len(s), s))
)


def _stem(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


class Lexicon:
    """Which words belong to which item: TF-IDF over training phrasings and answers."""

    def __init__(self, bank: Bank) -> None:
        counts = [
            Counter(
                _stem(w)
                for text in (*item.questions, item.answer)
                for w in words_of(text)
                if w not in STOP_WORDS
            )
            for item in bank.items
        ]
        frequency = Counter(word for count in counts for word in count)
        self.idf = {word: math.log((1 + len(counts)) / n) for word, n in frequency.items()}
        self._postings: dict[str, list[tuple[int, float]]] = {}
        for index, count in enumerate(counts):
            weights = {word: (1 + math.log(n)) * self.idf[word] for word, n in count.items()}
            norm = math.sqrt(sum(w * w for w in weights.values())) or 1.0
            for word, weight in weights.items():
                self._postings.setdefault(word, []).append((index, weight / norm))
        self._index = {item.id: i for i, item in enumerate(bank.items)}

    def points_to(self, text: str, item: Item, margin: float = 1.0) -> bool:
        """Whether the words of a text are nearer to this item than to any other, by a factor."""
        scores: dict[int, float] = {}
        for word in {_stem(w) for w in words_of(text)}:
            for index, weight in self._postings.get(word, ()):
                scores[index] = scores.get(index, 0.0) + weight * self.idf[word]
        own_score = scores.pop(self._index[item.id], 0.0)
        return own_score > 0 and own_score * 1.0001 >= margin * max(scores.values(), default=0.0)

    def weight(self, word: str) -> float:
        """How rare a word is: its inverse document frequency; 0 for stop words and unknown ones."""
        return 0.0 if word in STOP_WORDS else self.idf.get(_stem(word), 0.0)


class Rephraser:
    """Draws phrasings of items. All randomness comes from the `rng` passed in."""

    def __init__(self, bank: Bank) -> None:
        self.lexicon = Lexicon(bank)
        self._held_out = bank.held_out_keys

    def rephrase(self, item: Item, rng: random.Random, plain: float = 0.08) -> str:
        """One way to ask for the item: a training phrasing, as it is with probability `plain`."""
        question = rng.choice(item.questions)
        if rng.random() < plain:
            return question
        for _ in range(4):
            text = self._vary(question, item, rng)
            if text.strip() and phrasing_key(text) not in self._held_out:
                return text
        return question

    def _vary(self, question: str, item: Item, rng: random.Random) -> str:
        roll = rng.random()
        if roll < 0.12:
            text = self._key_words(item, rng)
        elif roll < 0.2:
            text = self._from_answer(item, rng)
        elif roll < 0.23:
            text = f"{question} {rng.choice(item.questions)}"
        else:
            text = question
            if rng.random() < 0.45:
                text = swap_stem(text, rng)
            if rng.random() < 0.3:
                text = swap_synonyms(text, rng)
            if rng.random() < 0.4:
                text = self._drop_words(text, item, rng)
            if rng.random() < 0.12:
                text = shuffle_fragment(text, rng)
        if rng.random() < 0.3:
            text = add_courtesy(text, rng)
        if rng.random() < 0.15:
            text = add_typos(text, rng)
        return vary_case(vary_punctuation(text, rng), rng)

    def _key_words(self, item: Item, rng: random.Random) -> str:
        """A bag of rare words of the item's training phrasings, as in a search box."""
        pool = list(dict.fromkeys(w for q in item.questions for w in words_of(q)))
        weights = [self.lexicon.weight(w) + 0.05 for w in pool]
        for _ in range(6):
            chosen = set(rng.choices(pool, weights, k=rng.randint(2, 6)))
            ordered = [w for w in pool if w in chosen]
            text = " ".join(ordered if rng.random() < 0.6 else rng.sample(ordered, len(ordered)))
            if self.lexicon.points_to(text, item, margin=1.2):
                return text
        return rng.choice(item.questions)

    def _from_answer(self, item: Item, rng: random.Random) -> str:
        """A few words in a row of the answer: people also ask in the words that it explains."""
        words = f"{item.answer} {item.more or ''}".split()
        for _ in range(6):
            start, length = rng.randrange(len(words)), rng.randint(2, 9)
            text = " ".join(words[start : start + length]).strip(".,;:")
            if rng.random() < 0.4:
                text = f"{rng.choice(rng.choice(STEMS))} {text}"
            if self.lexicon.points_to(text, item, margin=1.2):
                return text
        return rng.choice(item.questions)

    def _drop_words(self, text: str, item: Item, rng: random.Random) -> str:
        rate_stop, rate_content = rng.choice(
            ((0.3, 0.0), (0.6, 0.1), (0.9, 0.1), (0.3, 0.25), (1.0, 0.3))
        )
        kept = [
            w
            for w in text.split()
            if rng.random()
            >= (rate_stop if w.strip(".,?!:").lower() in STOP_WORDS else rate_content)
        ]
        reduced = " ".join(kept)
        return reduced if self.lexicon.points_to(reduced, item) else text


def swap_stem(text: str, rng: random.Random) -> str:
    """Another opening with the same meaning, or the bare subject, or the subject first."""
    lowered = text.lower()
    for stem, groups in _STEMS_BY_LENGTH:
        if lowered.startswith(stem + " "):
            rest = text[len(stem) + 1 :].strip()
            bare = rest.rstrip("?.! ")
            roll = rng.random()
            if roll < 0.08:
                return bare
            if roll < 0.16:
                return f"{bare}, {stem} it?" if stem.endswith(("is", "are")) else f"{bare}: {stem}"
            return f"{rng.choice(STEMS[rng.choice(groups)])} {rest}"
    return text


def swap_synonyms(text: str, rng: random.Random) -> str:
    """Replaces about half of the words that have a near synonym."""
    return _TOKEN.sub(
        lambda m: (
            rng.choice(SYNONYMS[m[0].lower()])
            if m[0].lower() in SYNONYMS and rng.random() < 0.4
            else m[0]
        ),
        text,
    )


def shuffle_fragment(text: str, rng: random.Random) -> str:
    """Moves the end of the phrasing to the front, or swaps two neighbouring words."""
    words = text.rstrip("?.!").split()
    if len(words) < 3:
        return text
    cut = rng.randrange(1, len(words))
    if rng.random() < 0.5:
        return " ".join([*words[cut:], *words[:cut]])
    words[cut - 1], words[cut] = words[cut], words[cut - 1]
    return " ".join(words)


def add_courtesy(text: str, rng: random.Random) -> str:
    """A polite or chatty opening, a closing, or both."""
    roll = rng.random()
    if roll < 0.7:
        head = rng.choice(PREFIXES)
        text = f"{head} {text[:1].lower() + text[1:] if rng.random() < 0.6 else text}"
    if roll > 0.6:
        end = text[-1:] if text[-1:] in "?.!" else ""
        text = f"{text.rstrip('?.! ')}{rng.choice((' ', ', ', ' '))}{rng.choice(SUFFIXES)}{end}"
    return text


def add_typos(text: str, rng: random.Random) -> str:
    """One or two slips: letters swapped, dropped or doubled, in words of four letters or more."""
    words = text.split()
    for _ in range(rng.choice((1, 1, 2))):
        places = [i for i, w in enumerate(words) if len(w) >= 4 and w.isalpha()]
        if not places:
            break
        place = rng.choice(places)
        word, k = words[place], rng.randrange(1, len(words[place]) - 1)
        words[place] = rng.choice(
            (
                word[:k] + word[k + 1] + word[k] + word[k + 2 :],
                word[:k] + word[k + 1 :],
                word[:k] + word[k] + word[k:],
            )
        )
    return " ".join(words)


def vary_case(text: str, rng: random.Random) -> str:
    """Lower case, upper case, a capital or a small letter at the start, or as it is."""
    roll = rng.random()
    if roll < 0.35:
        return text.lower()
    if roll < 0.45:
        return text[:1].lower() + text[1:]
    if roll < 0.65:
        return text[:1].upper() + text[1:]
    return text.upper() if roll < 0.665 else text


def vary_punctuation(text: str, rng: random.Random) -> str:
    """Drops, adds or changes the final mark; now and then drops all between words."""
    roll = rng.random()
    if roll < 0.35:
        return text.rstrip("?.! ")
    if roll < 0.55:
        return text.rstrip("?.! ") + rng.choice(("?", "?", "?", "??", ".", "!", " ?", "..."))
    if roll < 0.62:
        return re.sub(r"[,;:?!'\"-]+", " ", text).strip()
    return text
