"""The head of a page in one file: it asks nothing of the network, and runs its own scripts only."""

import base64
import hashlib
from collections.abc import Sequence


def script_source(script: str) -> str:
    """What a Content-Security-Policy lists under script-src to let this script run alone."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def head(title: str, style: str, scripts: Sequence[str]) -> str:
    """Up to the body. The policy makes the browser refuse outside requests, and scripts but for
    these; an empty icon keeps it from asking for one."""
    allowed = " ".join(map(script_source, scripts))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
"""
