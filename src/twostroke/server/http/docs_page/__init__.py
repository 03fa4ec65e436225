"""``/docs``: the API document to read and try, from files of this package alone.

``rapidoc-min.js`` is RapiDoc 9.3.8 as npm has it (``rapidoc``, MIT; ``rapidoc.LICENSE`` has its
licence and those of what is in it).
"""
