"""How the demo model's adapter was made: `python -m demo.train --out DIR` trains it, `python -m demo.evaluate MODEL_DIR` judges
it.

Not part of the gateway: it uses the gateway's own prompt encoder and parser, so that the model learns exactly what they write and
read.
"""
