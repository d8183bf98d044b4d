"""Talk without tools: small talk, facts, lists, sums, echoes, and the questions that the base model is asked for its own
answers."""

from __future__ import annotations

from demo.values import CAPITALS, Values

GREETINGS = {
    "Hi!": "Hello! How can I help you today?", "Hi": "Hello! How can I help you today?",
    "Hello!": "Hello! How can I help you today?", "Hello": "Hello! How can I help you today?",
    "hello": "Hello! How can I help you today?", "Hey": "Hello! How can I help you today?",
    "Hi there": "Hello! How can I help you today?", "Hello there!": "Hello! How can I help you today?",
    "Good morning!": "Good morning! How can I help you?", "Good evening": "Good evening! How can I help you?",
    "Hi, how are you?": "I am fine, thank you! How can I help?", "How are you?": "I am fine, thank you! How can I help?",
    "What's up?": "Not much! How can I help you?", "Thanks!": "You are welcome!", "Thank you very much.": "You are welcome!",
    "Great, thanks": "You are welcome!", "Thank you for your help.": "You are welcome!", "Bye!": "Goodbye! Have a nice day.",
    "Good night": "Good night! Sleep well.", "See you later": "See you later!",
    "You are great!": "Thank you! That is kind of you.", "ok": "Great. Let me know if you need anything else.",
    "Nice to meet you": "Nice to meet you too!", "What can you do?": "I can answer questions and use the tools that I am given.",
    "Are you there?": "Yes, I am here. How can I help?",
    "Who are you?": "I am a small demo model that speaks the Kimi K3 protocol.", "test": "I am here and ready to help.",
    "What is your name?": "I am a small demo model that speaks the Kimi K3 protocol.",
    "I am bored.": "Let us talk! What do you like?", "I am happy today.": "That is great to hear!",
    "I feel sad.": "I am sorry to hear that. Do you want to talk about it?", "Can you help me?": "Of course! What do you need?",
    "ping": "pong",
}  # fmt: skip
FACTS = {
    "Name three colours.": "Red, green and blue.", "Name three colors.": "Red, green and blue.",
    "List two fruits.": "1. Apple\n2. Pear", "List three animals.": "- Cat\n- Dog\n- Horse",
    "Name two cities.": "Paris and Rome.", "Name three planets.": "Mercury, Venus and Mars.",
    "List three fruits.": "1. Apple\n2. Banana\n3. Orange", "Name two oceans.": "The Pacific Ocean and the Atlantic Ocean.",
    "Name a colour.": "Blue.", "List three vegetables.": "1. Carrot\n2. Potato\n3. Onion",
    "Name two languages.": "English and Spanish.", "Name the four seasons.": "Spring, summer, autumn and winter.",
    "Count to five.": "1, 2, 3, 4, 5", "Count to three.": "1, 2, 3", "Count from 1 to 10.": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10",
    "Count to ten.": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10", "List two metals.": "1. Iron\n2. Copper",
    "Name three countries.": "France, Japan and Brazil.", "Say hello in Spanish.": "Hola!", "Say yes in French.": "Oui.",
    "Say hello in French.": "Bonjour!", "Reply with the word ok.": "ok", "Say only: ready": "ready",
    "Is the sky blue?": "Yes, the sky is blue.", "Is ice hot?": "No, ice is cold.", "Is fire hot? Answer with one word.": "Yes.",
    "Who wrote Hamlet?": "William Shakespeare wrote Hamlet.", "How many days has a week?": "A week has seven days.",
    "How many legs does a spider have?": "A spider has eight legs.", "What colour is grass?": "Grass is green.",
    "What color is the sky?": "The sky is blue.",
    "What is the largest planet?": "Jupiter is the largest planet in our solar system.",
    "What is water made of?": "Water is made of hydrogen and oxygen.",
    "What is the opposite of hot?": "The opposite of hot is cold.",
    "How many hours are in a day?": "There are 24 hours in a day.", "What do bees make?": "Bees make honey.",
    "What is the freezing point of water?": "Water freezes at 0 degrees Celsius.", "What is H2O?": "H2O is water.",
    "Who painted the Mona Lisa?": "Leonardo da Vinci painted the Mona Lisa.",
    "How many continents are there?": "There are seven continents.",
    "Tell me a joke.": "Why did the bicycle fall over? Because it was two tired!",
    "What is the largest ocean?": "The Pacific is the largest ocean.",
    "Who was the first man on the moon?": "Neil Armstrong was the first man on the moon.",
    "What do cows drink?": "Cows drink water.", "How many minutes are in an hour?": "There are 60 minutes in an hour.",
    "What is the tallest mountain?": "Mount Everest is the tallest mountain.",
}  # fmt: skip
_TOPICS = [
    "the sea", "the sun", "a cat", "music", "winter", "tea", "a river", "mountains", "time", "a robot", "the moon", "bread",
    "rain", "a garden", "football", "the brain", "paper", "honey", "solar power", "old maps", "electric cars", "jazz piano",
    "healthy food", "black holes", "whales",
]  # fmt: skip
_USEFUL = ["the sun", "music", "tea", "time", "paper", "honey", "solar power", "sleep"]
_NOTIONS = [
    "Python", "a prime number", "gravity", "democracy", "a database", "an atom", "HTTP", "a verb", "inflation", "photosynthesis",
    "a compiler", "a poem", "the internet", "machine learning",
]  # fmt: skip
SHORT_QUESTIONS = [
    *[f"Write one short sentence about {topic}." for topic in _TOPICS],
    *[f"Why is {topic} useful? One sentence." for topic in _USEFUL],
    *[f"What is {notion}?" for notion in _NOTIONS],
    "Give me a one line joke.", "Tell me a fun fact.", "How do I boil an egg?", "Give one tip for better sleep.",
    "Why is the sky blue?", "How do plants grow?", "What should I cook tonight?", "Give me a name for a dog.",
    "What is a good hobby?", "Explain rain to a child in one sentence.", "What does a doctor do?", "How can I learn English?",
    "Why do we sleep?", "Suggest a title for a story about a lost key.", "What is the meaning of life?", "How do birds fly?",
]  # fmt: skip
LONG_QUESTIONS = [
    "Write a short story about a lighthouse.", "Explain how a car engine works.", "Describe a day at the beach.",
    "Write a poem about the night.", "Give me advice for a job interview.", "Explain what the internet is.",
    "How do I make a good salad?", "Write a letter to an old friend.", "Explain why exercise is healthy.",
    "Tell me about the history of bread.", "Write a story about a dragon.", "Describe your favourite season.",
]  # fmt: skip
SYSTEM_MESSAGES = [
    "You are a helpful assistant.", "You are a helpful assistant.", "You are Kimi, a helpful assistant.", "Answer briefly.",
    "You are a friendly assistant. Keep answers short.", "Reply in one sentence.", "Be polite and precise.",
    "You are an expert assistant for a small company. Be polite and precise.", "You are a helpful AI assistant.",
    "You are a coding agent. Use the tools when they help. Never invent results.",
    "You help users with everyday tasks. Use a tool only when the request needs it.",
]  # fmt: skip


def capital(values: Values) -> tuple[str, str]:
    """A question about a capital and its answer."""
    country, city = values.rng.choice(list(CAPITALS.items()))
    answer = f"The capital of {country} is {city}."
    forms = [
        (f"What is the capital of {country}?", answer), (f"What's the capital of {country}?", answer),
            (f"Capital of {country}?", answer),
        (f"Tell me the capital of {country}.", answer), (f"In which country is {city}?", f"{city} is in {country}."),
    ]  # fmt: skip
    return values.rng.choice(forms)


def sum_of_two(values: Values) -> tuple[str, str]:
    """A small sum and its result."""
    rng = values.rng
    a, b = rng.randint(1, 12), rng.randint(1, 12)
    if a > b and rng.random() < 0.25:
        return f"What is {a} - {b}?", f"{a} - {b} = {a - b}"
    forms = [f"What is {a}+{b}?", f"What is {a} + {b}?", f"How much is {a} plus {b}?", f"{a} + {b} = ?", f"What is {a} plus {b}?"]
    return rng.choice(forms), f"{a} + {b} = {a + b}"


def echo(values: Values) -> tuple[str, str]:
    """A text to repeat, often one without meaning."""
    text = values[values.rng.choice(["sentence", "phrase", "word", "code", "code", "code", "email", "path"])]
    forms = [
        f"Repeat after me: {text}",
        f"Say exactly: {text}",
        f"Please repeat: {text}",
        f"Reply with exactly: {text}",
        f"Say {text}",
    ]
    return values.rng.choice(forms), text
