"""Tracing that was asked for: cog-trio does not trace, and this is where it says so.

An image that Cog 0.23 builds from a cog.yaml with ``observability`` asks by variables, a folder by the section itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cog_trio.config.yaml_source import SourceMark  # brings YAML, which a program without HTTP does without

SECTION: Final = "observability"
YES: Final = ("1", "true", "yes")
NO: Final = ("0", "false", "no")
UNREAD: Final = "asks for tracing, which is not read here: no spans are recorded"


def variable_warnings(environ: Mapping[str, str]) -> Iterator[str]:
    """One warning if the variables of Cog's image turn tracing on. ``OTEL_*`` alone may be meant for the model."""
    configured = environ.get("COG_TRACE_CONFIGURED", "").lower() in YES
    enabled = environ.get("COG_TRACE_ENABLED", "true").lower() not in NO
    disabled = environ.get("OTEL_SDK_DISABLED", "false").lower() in YES
    if configured and enabled and not disabled:
        yield f"COG_TRACE_CONFIGURED={environ['COG_TRACE_CONFIGURED']} {UNREAD}"


def section_warnings(section: SourceMark | None) -> Iterator[str]:
    """One warning if the section of cog.yaml says anything."""
    if section is not None and not section.empty:
        yield f"{section.path}:{section.line}: {section.key} {UNREAD}"
