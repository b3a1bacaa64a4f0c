"""By which environment variables a container hears how to log and where its spans go."""

from __future__ import annotations

LOG_FORMAT_VARIABLE = "HEADRACE_LOG_FORMAT"
TRACES_VARIABLE = "HEADRACE_TRACES_ENDPOINT"
TRACES_RATIO_VARIABLE = "HEADRACE_TRACES_RATIO"
