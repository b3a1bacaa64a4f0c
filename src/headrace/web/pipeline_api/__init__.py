"""The JSON API of pipelines: what they are, how they do, what changes them, and who may see them.

Requests come in below `/api/v1/pipelines`; the controller's views of applications
(`headrace.pipeline.controller.views`) go out, with a graph (`graph`) and judgements for the pages
(`pages`). Begin with `pipelines`, which lists, submits, deploys and stops them and decides whose
pipelines a user sees; `control` has what is below one pipeline's name, which Stram's paths share,
and `letters` its dead letters.
"""
