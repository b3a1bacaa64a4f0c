"""The HTTP interface described as OpenAPI 3.1, made from its endpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.web.server.endpoints import JSON, Endpoint

VERSION = "3.1.0"
_PARAMETER = re.compile(r"\{(\w+)(?::(\w+))?\}")
_ERROR = {
    "type": "object",
    "properties": {"error": {"type": "string"}},
    "required": ["error"],
}


def document(endpoints: Sequence[Endpoint], version: str) -> dict[str, Any]:
    kinds = [
        kind for one in endpoints for kind in (one.body_type, one.answer_type) if kind is not None
    ]
    found, components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    schemas = dict(zip(map(repr, kinds), found, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in endpoints:
        row = paths.setdefault(plain_path(one.path), {})
        row[one.method.lower()] = _operation(one, schemas)
    return {
        "openapi": VERSION,
        "info": {"title": "Headrace", "version": version},
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": _ERROR},
            "securitySchemes": {"user": {"type": "http", "scheme": "basic"}},
        },
    }


def plain_path(path: str) -> str:
    """A path without the types that the router puts into its parameters."""
    return _PARAMETER.sub(r"{\1}", path)


def _operation(one: Endpoint, schemas: Mapping[str, Any]) -> dict[str, Any]:
    path = plain_path(one.path)
    operation: dict[str, Any] = {
        "operationId": f"{one.method.lower()}{re.sub(r'[^A-Za-z0-9]+', '_', path)}".rstrip("_"),
        "summary": one.summary,
        "parameters": [*_path_parameters(one.path), *_query_parameters(one)],
        "responses": _responses(one, schemas),
        "security": [{"user": []}] if one.login else [],
    }
    if one.manage:
        operation["description"] = "Needs a user who may manage the server."
    if one.body_type is not None:
        schema = schemas[repr(one.body_type)]
        content = {JSON: {"schema": schema}}
        operation["requestBody"] = {"required": one.body_required, "content": content}
    return operation


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "integer" if kind == "number" else "string"},
        }
        for name, kind in _PARAMETER.findall(path)
    ]


def _query_parameters(one: Endpoint) -> list[dict[str, Any]]:
    return [
        {
            "name": parameter.name,
            "in": "query",
            "description": parameter.description,
            "schema": parameter.schema,
            "required": parameter.required,
        }
        for parameter in one.query
    ]


def _responses(one: Endpoint, schemas: Mapping[str, Any]) -> dict[str, Any]:
    good: dict[str, Any] = {"description": "Found." if one.method == "GET" else "Done."}
    kind = one.answer_type
    if one.media_type != JSON:
        good["content"] = {one.media_type: {"schema": {"type": "string"}}}
    elif kind is not None:
        good["content"] = {JSON: {"schema": schemas[repr(kind)]}}
    if one.path == "/ready":
        return {"2XX": good, "503": {**good, "description": "Not now, and why."}}
    error = {
        "description": "Why not.",
        "content": {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    return {"2XX": good, **dict.fromkeys(_refusals(one), error)}


def _refusals(one: Endpoint) -> list[str]:
    """Statuses of what may be wrong with a request to it, or with the broker behind it."""
    changes = one.method != "GET"
    codes = ["400"]
    codes += ["401"] if one.login or one.body_type is not None else []
    codes += ["403"] if one.login or changes else []
    codes += ["404"] if "{" in one.path else []
    codes += ["409", "413"] if changes else []
    codes += ["503"] if one.login or changes else []
    return codes
