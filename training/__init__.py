"""How pilot, the embedded chat model, is made.

bank -> tokenizer -> training -> export -> evaluation.
"""
