"""The JSON API of pipelines: their graph, stages, dead letters, and who may see them."""
