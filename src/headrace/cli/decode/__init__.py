"""headrace decode: what bytes of the three protocols say.

A capture, raw bytes or hex text comes in; one line for each frame goes out. `captures.py` takes
packets apart into streams of bytes, `explaining.py` turns frames into text and masks passwords.
Begin with `decode.py`.
"""
