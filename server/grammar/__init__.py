"""Grammars of whole answers: what the model may write next, token by token."""
