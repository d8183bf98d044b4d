"""JSON Schemas of tools and answers: whether they are well-formed, what they allow, and whether a value fits.

Role: below every API and every model format. Invariant: nothing is ever fetched or read from outside, and all work is bounded by
what a schema has, never by what it could describe.
"""
