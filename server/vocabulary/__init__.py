"""Vocabularies: token id -> bytes, text -> token ids, control tokens by name."""
