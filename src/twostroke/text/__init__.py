"""Text in, tokens; tokens out, text: tokenizer, incremental detokenizer, stop strings, chat
template.
"""
