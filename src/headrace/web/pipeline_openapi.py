"""What the paths of the pipelines' pages take and give, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.web.diagnosis.types import Situation
from headrace.web.openapi_rows import Detail, Parameter
from headrace.web.pipeline_api import api as p
from headrace.web.pipeline_api import letters as d

PIPELINE_DETAILS: Mapping[tuple[str, str], Detail] = {
    ("GET", "/api/problems"): Detail(
        "Everything that is wrong, worst first, and how all pipelines are.", Situation
    ),
    ("GET", f"{p.PIPELINE}/live"): Detail(
        "One pipeline as its page shows it.",
        p.PipelineLive,
        query={
            "after_ms": Parameter(
                "Only windows that were heard of after this time.",
                {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
            )
        },
    ),
    ("GET", f"{p.PIPELINE}/errors"): Detail(
        "Its errors, newest first, each with its log lines.", p.PipelineErrors
    ),
    ("GET", d.LETTERS): Detail("Dead-letter topics of its operators.", d.LetterBoxes),
    ("GET", f"{d.LETTERS}/{{operator}}"): Detail(
        "An operator's dead letters, newest first.",
        d.DeadLetters,
        query={
            "topic": "Which, where the operator has several.",
            "count": Parameter(
                "At most so many of each partition.",
                {"type": "integer", "minimum": 1, "maximum": d.LETTERS_MAX},
            ),
            "all": Parameter(
                "Also those that were sent again.", {"type": "string", "enum": ["true", "false"]}
            ),
        },
    ),
    ("POST", f"{d.LETTERS}/{{operator}}/redrive"): Detail(
        "Send dead letters again, to where they came from.",
        d.RedriveDone,
        d.Redrive,
        query={"topic": "Which, where the operator has several."},
    ),
    ("GET", f"{p.PIPELINE}/containers/{{container}}/logs"): Detail(
        "The last lines of a container.",
        text=True,
        query={
            "lines": Parameter(
                "How many.", {"type": "integer", "minimum": 1, "maximum": p.LOG_LINES_MAX}
            ),
            "level": Parameter(
                "Only these and worse.", {"type": "string", "enum": list(p.LEVELS[1:])}
            ),
        },
    ),
}
