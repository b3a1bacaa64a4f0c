"""Writes the tables of docs/settings.md, cli.md, observability.md and protocols/*.md, and of the
Wireshark dissectors; `--check` only compares.

Every row names the test that proves it. A row without a proof, or a proof that names a test which
does not exist, is an error: a page may not promise what nothing checks. Settings without a
description are one too.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
BEGIN = "<!-- generated: begin {name} -->"
END = "<!-- generated: end {name} -->"


class ProofError(Exception):
    """A row without a proof, or a proof without a test."""


def check_proof(row: str, proofs: Mapping[str, str]) -> str:
    proof = proofs.get(row)
    if proof is None:
        raise ProofError(f"{row}: no test proves this row")
    path, _, test = proof.partition("::")
    file = ROOT / path
    if not file.is_file():
        raise ProofError(f"{row}: {path} does not exist")
    names = {
        node.name
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    wanted = test.split("[")[0].split("::")
    if not test or not set(wanted) <= names:
        raise ProofError(f"{row}: {path} has no test {test!r}")
    return f"`{path.removeprefix('tests/')}::{test}`"


def markdown_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |"]
    lines.append("|" + "---|" * len(list(head)))
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def _fields(kind: Any) -> tuple[Field[Any], ...]:
    """Every message class is a dataclass, though its base class does not say so."""
    return fields(kind)


def sbp_tables() -> dict[str, str]:
    from headrace.wire.sbp import messages
    from headrace.wire.sbp.opcodes import TABLE
    from tests.conformance.sbp.proofs import PROOFS

    opcodes = [
        [
            f"0x{row.code:04x}",
            row.name,
            ", ".join(role.name or "" for role in row.served_by).lower().replace("_", " "),
            check_proof(row.name, PROOFS),
        ]
        for row in TABLE.values()
    ]
    groups: list[list[str]] = []
    for name, kind in sorted(vars(messages).items()):
        if (
            isinstance(kind, type)
            and issubclass(kind, messages.Message)
            and kind is not messages.Message
        ):
            described = " · ".join(
                f"{field.metadata['flat'].id} {field.name}" for field in _fields(kind)
            )
            groups.append([name, described, check_proof(name, PROOFS)])
    actions = [
        [str(int(action)), action.name, check_proof(f"LEASE {action.name}", PROOFS)]
        for action in messages.LeaseAction
    ]
    return {
        "opcodes": markdown_table(["Code", "Opcode", "Served by", "Proof"], opcodes),
        "leases": markdown_table(["Action", "LEASE", "Proof"], actions),
        "tables": markdown_table(["Table", "Fields (id name)", "Proof"], groups),
    }


def iggy_tables() -> dict[str, str]:
    from headrace.wire.iggy.commands import SERVED
    from tests.conformance.iggy.proofs import PROOFS

    rows = [
        [
            str(row.code),
            row.name,
            "yes" if row.authenticated else "no",
            check_proof(row.name, PROOFS),
        ]
        for row in SERVED.values()
    ]
    return {"commands": markdown_table(["Code", "Command", "Login", "Proof"], rows)}


def umbilical_tables() -> dict[str, str]:
    from headrace.wire.umbilical import messages
    from headrace.wire.umbilical.codec import TABLE
    from tests.conformance.umbilical.proofs import PROOFS

    calls = [[name, check_proof(name, PROOFS)] for name in TABLE]
    groups = [
        [name, ", ".join(field.name for field in _fields(kind)), check_proof(name, PROOFS)]
        for name, kind in sorted(messages.FIELD_GROUPS.items())
    ]
    return {
        "calls": markdown_table(["Call", "Proof"], calls),
        "fields": markdown_table(["Group", "Fields", "Proof"], groups),
    }


def render(page: str, tables: Mapping[str, str]) -> str:
    """The page with each generated part replaced."""
    for name, table in tables.items():
        begin, end = BEGIN.format(name=name), END.format(name=name)
        if begin not in page or end not in page:
            raise ProofError(f"the page lacks the marks of the part {name!r}")
        before, rest = page.split(begin, 1)
        page = f"{before}{begin}\n\n{table}\n\n{end}{rest.split(end, 1)[1]}"
    return page


def _setting_rows(kind: type[msgspec.Struct], prefix: str = "") -> Iterator[list[str]]:
    from headrace.config.advanced import place_in_file

    described = msgspec.inspect.type_info(kind)
    assert isinstance(described, msgspec.inspect.StructType)
    for field in described.fields:
        inner = field.type
        if isinstance(inner, msgspec.inspect.StructType):
            yield from _setting_rows(inner.cls, f"{prefix}{field.name}.")
            continue
        text = ""
        if isinstance(inner, msgspec.inspect.Metadata):
            text = (inner.extra_json_schema or {}).get("description", "")
        if not text:
            raise ProofError(f"setting {prefix}{field.name}: no description")
        made = field.default is msgspec.NODEFAULT and callable(field.default_factory)
        default = field.default_factory() if made else field.default
        place = place_in_file(f"{prefix}{field.name}")
        yield [f"`{place}`", f"`{json.dumps(default)}`", text]


def settings_tables() -> dict[str, str]:
    from headrace.config.settings import Settings

    head = ["Setting", "Default", "Meaning"]
    rows = list(_setting_rows(Settings))
    advanced = [row for row in rows if row[0].startswith("`advanced.")]
    return {
        "settings": markdown_table(head, (row for row in rows if row not in advanced)),
        "advanced": markdown_table(head, advanced),
    }


def cli_tables() -> dict[str, str]:
    from tests.cli_page import UndescribedError, rows

    try:
        return {"commands": markdown_table(["Command", "Does", "Arguments and options"], rows())}
    except UndescribedError as error:
        raise ProofError(str(error)) from error


def metrics_tables() -> dict[str, str]:
    from headrace.observability.alerts import ALERTS
    from headrace.observability.metrics import TABLE

    rows = [
        [f"`{one.name}`", one.kind, ", ".join(one.labels), one.role, one.help]
        for one in TABLE.values()
    ]
    alerts = [
        [f"`{one.name}`", one.severity, f"{one.minutes} min", one.summary, one.action]
        for one in ALERTS
    ]
    return {
        "metrics": markdown_table(["Metric", "Type", "Labels", "Told by", "Meaning"], rows),
        "alerts": markdown_table(["Alert", "Severity", "After", "Says", "What to do"], alerts),
    }


def rest_tables() -> dict[str, str]:
    from headrace.web.server.endpoints import openapi_document
    from tests.unit.web.stram.test_stram import all_endpoints

    rows = []
    for path, operations in openapi_document(all_endpoints(), "")["paths"].items():
        for method, operation in operations.items():
            who = "anyone"
            if operation["security"]:
                who = "a manager" if "description" in operation else "a user"
            query = ", ".join(
                f"`{each['name']}`" for each in operation["parameters"] if each["in"] == "query"
            )
            rows.append([f"`{method.upper()} {path}`", operation["summary"], query, who])
    return {"paths": markdown_table(["Path", "Does", "Query", "Asked by"], rows)}


GENERATED: Mapping[str, Callable[[], dict[str, str]]] = {
    "protocols/sbp.md": sbp_tables,
    "protocols/iggy.md": iggy_tables,
    "protocols/umbilical.md": umbilical_tables,
    "settings.md": settings_tables,
    "cli.md": cli_tables,
    "rest.md": rest_tables,
    "observability.md": metrics_tables,
}


def _files() -> dict[str, str]:
    """Whole files, by their path from the root."""
    from tests import wireshark_tables

    return {wireshark_tables.PATH: wireshark_tables.text()}


def main(arguments: list[str]) -> int:
    stale = []
    for name, text in _files().items():
        path = ROOT / name
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if "--check" not in arguments:
                path.write_text(text)
    for name, tables in GENERATED.items():
        path = DOCS / name
        try:
            page = path.read_text()
            text = render(page, tables())
        except ProofError as error:
            print(f"docs/{name}: {error}", file=sys.stderr)
            return 1
        if text != page:
            stale.append(f"docs/{name}")
            if "--check" not in arguments:
                path.write_text(text)
    if stale and "--check" in arguments:
        print(f"out of date: {', '.join(stale)}; run `make docs`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
