"""Hatch's build hook: a wheel, and an sdist that one is made of, have COMMIT (`checkback.build`); a wheel has conf."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PLACES = {"wheel": "checkback/COMMIT", "sdist": "lib/checkback/COMMIT"}


class CommitFile(BuildHookInterface):  # type: ignore[type-arg]  # of the builder's configuration
    """Adds COMMIT, unless it is there: an sdist has it; and conf, for Prometheus, Grafana, systemd and Databricks."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Hatch calls it before it builds. An editable install has the checkout instead."""
        root = Path(self.root)
        if version == "editable":
            return
        if self.target_name == "wheel":
            build_data["force_include"][str(root / "conf")] = "checkback/conf"
        if (root / "lib" / "checkback" / "COMMIT").exists():
            return
        sys.path.insert(0, str(root / "lib"))
        from checkback.build import checkout_commit

        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name) / "COMMIT"
        file.write_text(checkout_commit(str(root)), encoding="ascii")
        build_data["force_include"][str(file)] = _PLACES[self.target_name]

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 - Hatch's
        """Hatch calls it after it has built."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()
