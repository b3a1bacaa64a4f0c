"""What is wrong with pipelines, broker and cluster, and what to do about it.

Views of applications, their windows and samples of the broker come in; `Problem`s, each with a
sentence, a severity and a next step, and the health of each pipeline go out (`types`). Everything
but `cluster`, which asks the placement managers, is a pure function of what it is given. Begin
with `problems`, which asks the others: `findings` for what limits a pipeline, `failures` for what
failed.
"""
