"""Imports the modules named as arguments (by their files, from the workspace), one after another.

Run with a library's own dependencies and no test's, this shows that what it declares is enough.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import PurePosixPath


def main(files: list[str]) -> None:
    for file in files:
        path = PurePosixPath(file)
        module = path.parent if path.name == "__init__.py" else path.with_suffix("")
        import_module(".".join(module.parts))


if __name__ == "__main__":
    main(sys.argv[1:])
