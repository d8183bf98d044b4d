"""An engine that plays scripts: no model, no vLLM, and the same contract.

`script` reads the file, `rules` choose the answer and `polite` gives one where none is chosen, `reply` cuts it into outputs,
`engine` paces and delivers them.
"""
