"""Wordings of system prompts, follow-ups and names. A hash sets some aside for the evaluation."""

import random
from collections.abc import Sequence

from training.bank import Bank, hashed_fraction

NO_MORE = "That is all I know about it. Ask me about something else in LLM inference."
NO_TOPIC = (
    "I do not know yet what you refer to. Ask me a question about LLM inference first, and I will"
    " go on from there."
)
THANKS_REPLY = "You are welcome. Ask me anything else about LLM inference."

# fmt: off
ONE_SENTENCE = (
    "Answer in one sentence.", "Answer with one sentence only.", "Reply in a single sentence.",
    "Keep every answer to one sentence.", "You answer in exactly one sentence.",
    "Be brief: one sentence per answer.", "Respond in one sentence.", "Use only one sentence.",
    "You are terse. Answer in one sentence.", "Give short answers of one sentence.",
    "Please answer in one sentence.", "one sentence only", "Limit your reply to one sentence.",
    "Never write more than one sentence.", "Your answers must be one sentence long.", "Be concise.",
    "You are a helpful assistant. Answer in one sentence.", "Be very brief.", "Keep answers short.",
    "Short answers only, one sentence each.",
    "You are a helpful assistant that answers in a single sentence.",
    "Reply with a single short sentence.", "Answer briefly.",
    "Always answer in one sentence, whatever the question.", "Write one sentence and stop.",
    "Be brief.", "Answer in 1 sentence.",
)
NAME = (
    "Your name is {}.", "You are {}.", "You are called {}.", "You are {}, a helpful assistant.",
    "Your name is {}. You help people.", "Call yourself {}.", "You go by the name {}.",
    "You are an assistant named {}.", "You are an assistant called {}.", "name: {}", "Act as {}.",
    "Your name: {}.", "From now on your name is {}.",
    "You are a helpful assistant. Your name is {}.", "Be {}.",
    "You are {}, an assistant for questions about inference.", "Introduce yourself as {}.",
    "We call you {}.", "The assistant is called {}.", "You're {}.",
    "The name of the assistant is {}.", "You are a chatbot with the name {}.", "Answer as {}.",
    "Your new name is {}.", "Hello, your name is {} and you answer questions.",
    "You are {}. Answer the questions of the user.", "Always say that your name is {}.",
)
BEGIN = (
    "Begin every answer with {}", "Begin every answer with the word {}",
    "Start every answer with {}", "Start each reply with {}", 'Begin each answer with "{}"',
    'Always start with "{}"', "Always begin your answer with {}", "Your answers begin with {}",
    "Every answer must start with {}", 'Start your reply with the word "{}"',
    "The first word of every answer is {}", "Open with {}",
    "You are a helpful assistant. Begin every answer with {}", "Please start all answers with {}",
    "Say {} before each answer", "First say {} and then answer",
    "Put {} at the start of every answer", "Prefix every answer with {}",
    "Begin all replies with {}", "Whatever I ask, begin with {}", "Begin with the word {}",
    "Start by saying {}", "Each answer starts with the word {}",
)
END = (
    "End every answer with {}", "End every answer with the word {}", "Finish every answer with {}",
    "Finish each reply with {}", 'End each answer with "{}"', 'Always end with "{}"',
    "Always finish your answer with {}", "Your answers end with {}",
    "Every answer must end with {}", 'End your reply with the word "{}"',
    "The last word of every answer is {}", "Close with {}",
    "You are a helpful assistant. End every answer with {}", "Please end all answers with {}",
    "Say {} after each answer", "Answer and then say {}", "Put {} at the end of every answer",
    "Append {} to every answer", "End all replies with {}", "Whatever I ask, end with {}",
    "End with the word {}", "Finish by saying {}", "Each answer ends with the word {}",
)
SAY = (
    "Repeat after me: {}", "Say {}", "Say: {}", "Repeat this: {}", 'Say "{}"', "Please say {}",
    "repeat: {}", "Repeat these words: {}", "Echo this: {}", "echo {}", "Copy this text: {}",
    "Write exactly this: {}", 'Repeat "{}"', "Print {}", "Output only this: {}", "Just say {}",
    "Can you say {}?", "Say this back to me: {}", "Repeat the following words. {}", "Type this: {}",
    "now say {}", "Reply with {}", "Answer with only this: {}", "I want you to say: {}",
)
NEUTRAL = (
    "You are a helpful assistant.", "You are pilot, a helpful assistant.",
    "You are a friendly assistant.", "You are an expert on inference.",
    "Answer the user's questions.", "You are a helpful, honest assistant.", "Be helpful.",
    "You are an AI assistant.", "Help the user.", "You are ChatGPT, a large language model.",
    "You are a knowledgeable engineer.", "Answer truthfully.", "You are a teacher.", "Hello.",
    "You are a patient tutor who explains how language models are served.",
    "This is a demonstration.", "You are a coding assistant.",
    "Answer to the best of your knowledge.", "You are a support agent for an inference server.",
    "If you do not know, say so.",
    "You are a helpful assistant. Answer the question of the user as well as you can.",
    "Today is Monday.", "Be polite and accurate.", "The current date is 2026-03-14.",
    "You are a large language model trained to help.", "Follow the instructions of the user.",
    "You are an assistant that runs on a small machine.", "Think before you answer.",
    "Use plain words.", "Be kind.", "You are useful.",
)
IDENTITY = (
    "What is your name?", "what's your name", "who are you", "Who are you?", "your name?",
    "What should I call you?", "tell me your name", "what are you called", "May I ask your name?",
    "Who am I talking to?", "hi, who is this?", "say your name", "what do people call you",
    "introduce yourself", "Do you have a name?", "and your name is?", "with whom am I speaking",
    "How should I address you?", "Hello, what is your name?", "name please", "who r u",
    "Please introduce yourself.", "What name do you go by?", "can you tell me your name",
)
MORE = (
    "tell me more", "go on", "why?", "can you expand", "Tell me more.", "Go on.",
    "Can you expand on that?", "more please", "more details", "continue", "please continue",
    "what else?", "anything else?", "explain further", "can you elaborate?", "elaborate", "more",
    "give me more detail", "I want to know more", "and?", "say more", "why is that?",
    "please go on", "Could you tell me more about that?", "keep going", "expand on that",
    "Tell me more about it.", "interesting, tell me more", "what more can you say?", "how so?",
    "Can you go deeper?", "more on that", "is there more?", "ok, and?",
    "could you elaborate on that", "explain that in more detail",
)
REPEAT = (
    "say that again", "repeat", "repeat that", "Can you repeat that?", "what did you say?",
    "sorry, what?", "once more please", "pardon?", "again please", "Please repeat your answer.",
    "could you say that again?", "repeat your last answer", "I did not get that, say it again",
    "come again?", "say it once more", "repeat please",
)
SHORTER = (
    "shorter please", "in one sentence", "shorter", "too long", "summarise that", "summarize",
    "tl;dr", "can you say that in one sentence?", "In one sentence, please.",
    "give me the short version", "make it shorter", "sum it up", "briefly please",
    "one sentence only", "Can you make that shorter?", "in short?", "short version?",
    "summary please", "say it in one sentence",
)
THANKS = (
    "thanks", "thank you", "Thanks!", "thx", "Thank you very much.", "great, thanks",
    "ok thank you", "many thanks", "cheers", "thanks a lot", "perfect, thank you",
    "thank you so much", "that helps, thanks", "ty", "Thanks, that was useful.", "nice, thank you",
)
BRIEFLY = (
    "{} In one sentence.", "In one sentence: {}", "{} Answer in one sentence.", "Briefly, {}",
    "{} One sentence please.", "In one sentence, {}", "{} (one sentence)",
    "{} Keep it to one sentence.", "Answer in one sentence: {}", "{} Be brief.", "short answer: {}",
    "tl;dr {}",
)
DOCUMENT = (
    "Here is some text:\n{doc}\n\nQuestion: {q}", "{doc}\n\n{q}", "Context: {doc}\nQuestion: {q}",
    "Read this: {doc}\n\nNow answer: {q}", "Documents:\n{doc}\n\n{q}",
    "{doc}\n\nUnrelated to that: {q}", "I found this on a page:\n\n{doc}\n\nMy question is: {q}",
    "Notes: {doc}\n\nLeaving the notes aside, {q}", "[text] {doc} [end of text]\n{q}",
    "Given the text below, answer.\n{doc}\n\n{q}", "Some background first. {doc}\n\nQ: {q}",
    "<document>\n{doc}\n</document>\n{q}",
)
_NAMES = (
    "Ada", "Grace", "Alan", "Linus", "Marie", "Otto", "Nova", "Luna", "Max", "Sam", "Robin", "Kim",
    "Alex", "Bruno", "Clara", "Dora", "Emil", "Finn", "Greta", "Hugo", "Iris", "Jonas", "Karla",
    "Leo", "Mia", "Nora", "Oscar", "Paul", "Quinn", "Rosa", "Simon", "Tara", "Uma", "Victor",
    "Wanda", "Xena", "Yuri", "Zoe", "Atlas", "Echo", "Orion", "Iota", "Sage", "Rex", "Buddy",
    "Jarvis", "Hal", "Marvin", "Eliza", "Athena",
)
_WORDS = (
    "Ahoy", "Hello", "Certainly", "Sure", "Indeed", "Well", "Yes", "Listen", "Behold", "Greetings",
    "Aye", "Arrr", "Banana", "Captain", "Meow", "Beep", "Howdy", "Bonjour", "Hola", "Ciao",
    "Namaste", "Cheers", "Over", "Amen", "Done", "Stop", "Roger", "Out", "Goodbye", "Farewell",
    "Peace", "Always", "Forever", "Truly", "Sincerely", "Regards", "Enjoy", "Onward", "Voila",
    "Finis", "Tada", "Okay", "Right", "Alright", "Great", "Friend", "Sir", "Madam", "Boss", "Chief",
    "Comrade", "Wow", "Oh", "Hmm", "Eureka", "Bingo", "Purple", "Orange", "Pickle", "Rocket",
    "Zebra", "Tango",
)
_ONSETS = (
    "b", "br", "c", "ch", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "kr", "l", "m", "n", "p",
    "qu", "r", "s", "sh", "st", "t", "th", "tr", "v", "w", "x", "y", "z", "",
)
_VOWELS = (
    "a", "e", "i", "o", "u", "ai", "ee", "ou", "ia", "y",
)
_CODAS = (
    "", "", "n", "r", "s", "l", "x", "th", "k", "m", "nd", "t",
)
# fmt: on


def split_wordings(wordings: Sequence[str], held_out: bool) -> tuple[str, ...]:
    """Wordings to train on, or to evaluate with (the sixth with the smallest hash)."""
    held = set(sorted(wordings, key=hashed_fraction)[: max(2, len(wordings) // 6)])
    return tuple(w for w in wordings if (w in held) == held_out)


def is_held_out_word(word: str) -> bool:
    """Whether a name or a word to copy belongs to the evaluation (one in eight, by hash)."""
    return hashed_fraction(word.lower()) < 0.125


def invent_name(rng: random.Random) -> str:
    """A pronounceable name of one to three syllables that is probably no real one."""
    syllables = rng.choice((1, 2, 2, 3))
    return "".join(
        rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(syllables)
    ).capitalize()


def draw_name(rng: random.Random, held_out: bool = False) -> str:
    """A name from the list or an invented one, from the training or the evaluation side."""
    while True:
        name = rng.choice(_NAMES) if rng.random() < 0.3 else invent_name(rng)
        if len(name) > 2 and is_held_out_word(name) == held_out:
            return name


def copy_words(bank: Bank) -> tuple[str, ...]:
    """Words to begin or end with on demand: those above, and long ones of the answers."""
    vocabulary = {w.strip(".,:;()'\"") for item in bank.items for w in item.answer.split()}
    return tuple(
        sorted({*_WORDS, *(w.capitalize() for w in vocabulary if w.isalpha() and 3 < len(w) < 11)})
    )


def draw_word(rng: random.Random, words: Sequence[str], held_out: bool = False) -> str:
    """A word to copy, sometimes invented, sometimes in another case."""
    while True:
        roll = rng.random()
        word = (
            rng.choice(_WORDS)
            if roll < 0.35
            else invent_name(rng)
            if roll < 0.65
            else rng.choice(words)
        )
        if len(word) > 2 and is_held_out_word(word) == held_out:
            return rng.choices((word, word.lower(), word.upper()), (0.75, 0.15, 0.1))[0]


def draw_words(rng: random.Random, words: Sequence[str], count: int, held_out: bool = False) -> str:
    """Several words to copy, in no order that could be guessed."""
    return " ".join(draw_word(rng, words, held_out) for _ in range(count))


def instruction_texts() -> list[str]:
    """All training-side wordings, for the tokenizer's training text."""
    lists = (
        ONE_SENTENCE,
        SAY,
        NAME,
        BEGIN,
        END,
        NEUTRAL,
        IDENTITY,
        MORE,
        REPEAT,
        SHORTER,
        THANKS,
        BRIEFLY,
        DOCUMENT,
    )
    wordings = [w for group in lists for w in split_wordings(group, held_out=False)]
    return [*wordings, *_NAMES, *_WORDS, NO_MORE, NO_TOPIC, THANKS_REPLY, "My name is X."]
