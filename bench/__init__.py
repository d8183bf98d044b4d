"""What is measured, and how: one command each.

CPU seconds per unit of work are the figure; the wall clock of a shared machine drifts.
"""
