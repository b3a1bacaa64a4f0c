"""headrace top: what moves, live in the terminal.

`sample.py` asks a broker and a control plane and makes one look out of two samples; `screen.py`
draws the look and listens to keys. Begin with `top.py`, the command.
"""
