"""Requirements that are locked, and what is said of those that are not."""

from __future__ import annotations

import pytest

from headrace.errors import InvalidArgumentError
from headrace.pipeline.plan.packages import locked_requirements

HASH = "--hash=sha256:" + "0" * 64
LOCKED = f"""# made by pip-compile
polars==1.2.3 \\
    {HASH} \\
    {HASH}
tomli==2.0.1 ; python_version < "3.11" {HASH}
httpx[http2]==0.27.0 {HASH}   # a comment
./wheels/own-1.0-py3-none-any.whl {HASH}
"""


def test_locked_requirements_are_found() -> None:
    files = {"requirements.txt": LOCKED.encode(), "wheels/own-1.0-py3-none-any.whl": b""}
    assert locked_requirements(files) == ("requirements.txt", LOCKED.encode())
    both = files | {"requirements.lock": f"a==1 {HASH}".encode()}
    found = locked_requirements(both)
    assert found is not None
    assert found[0] == "requirements.lock"


def test_a_package_may_need_nothing() -> None:
    assert locked_requirements({"shop.py": b""}) is None
    assert locked_requirements({"requirements.txt": b"# nothing\n\n"}) is None


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("polars", "name one version"),
        (f"polars>=1 {HASH}", "name one version"),
        (f"polars==1.* {HASH}", "name one version"),
        ("polars==1.2.3", "--hash=sha256"),
        ("polars==1.2.3 --hash=md5:00", "64 hexadecimal"),
        ("--index-url somewhere", "options and addresses"),
        (f"-e . {HASH}", "options and addresses"),
        (f"polars @ file:///p.whl {HASH}", "options and addresses"),
        (f"./wheels/missing-1.0-py3-none-any.whl {HASH}", "no such file"),
    ],
)
def test_what_is_not_locked_is_refused(line: str, says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        locked_requirements({"requirements.txt": line.encode()})
