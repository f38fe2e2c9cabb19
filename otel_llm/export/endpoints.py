"""The endpoints of several collectors: the list in the environment, checked, and one `OtlpSettings` for each.

The list is a variable of ours: `OTEL_EXPORTER_OTLP_ENDPOINT` names one endpoint, and the application's own exporters
read it too. Protocol, headers, timeout, compression and certificates are those of the standard variables, for all.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from otel_llm.export import host_log
from otel_llm.export.host_log import OWN_CHARS, Shown, shown
from otel_llm.export.settings import TRACES_PATH, from_environment

if TYPE_CHECKING:
    from collections.abc import Mapping
    from urllib.parse import SplitResult

    from otel_llm.export.settings import OtlpSettings

ENDPOINTS_VARIABLE: Final = "OTEL_LLM_ENDPOINTS"
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class EndpointsError(ValueError):
    """A list of endpoints cannot be used; the message names the variable, the entry and a remedy."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{ENDPOINTS_VARIABLE}: {problem}: {remedy}")


def listed_settings(environ: Mapping[str, str] = os.environ) -> dict[str, OtlpSettings]:
    """Return the settings of each collector by its name; without a list those of the standard variables.

    A name is the URL with its port, in lower case up to the path: every process with the list has the same names.

    Raises:
        EndpointsError: the list has an empty entry, no URL, equal endpoints, or `http` and `https` at once.
    """
    return _listed(environ, from_environment(environ))


def usable_settings(environ: Mapping[str, str] = os.environ) -> dict[str, OtlpSettings]:
    """Return `listed_settings`; a list that cannot be used is warned of and treated as unset."""
    one = from_environment(environ)
    try:
        return _listed(environ, one)
    except EndpointsError as problem:
        words = "%s (sending to one endpoint, %s)"
        host_log.warning(words, Shown(problem), shown(one.shown, OWN_CHARS))
        return {one.shown: one}


def _listed(environ: Mapping[str, str], one: OtlpSettings) -> dict[str, OtlpSettings]:
    text = environ.get(ENDPOINTS_VARIABLE, "")
    if not text.strip():
        return {one.shown: one}
    found: dict[str, OtlpSettings] = {}
    schemes: set[str] = set()
    for number, entry in enumerate(text.split(","), 1):
        url = _checked(entry.strip(), number, one)
        path = url.path.rstrip("/")
        host = url.netloc.removesuffix(":") if url.port is None else url.netloc.rpartition(":")[0]
        address = f"{host}:{url.port or _DEFAULT_PORTS[url.scheme]}"
        name = f"{url.scheme}://{address.lower()}{path}"
        if name in found:
            raise EndpointsError(f"entry {number} is {name} again", "name each collector once")
        schemes.add(url.scheme)
        if one.protocol == "grpc":
            found[name] = replace(one, endpoint=address, insecure=url.scheme == "http")
        else:
            found[name] = replace(one, endpoint=f"{url.scheme}://{address}{path}/{TRACES_PATH}")
    if len(schemes) > 1:
        raise EndpointsError("some entries are http, some https", "use one of them: all get the same headers")
    return found


def _checked(entry: str, number: int, one: OtlpSettings) -> SplitResult:
    """Return an entry as a URL; no message repeats the entry, which may hold credentials."""
    if not entry:
        raise EndpointsError(f"entry {number} is empty", "separate URLs by one comma")
    try:
        url = urlsplit(entry)
        usable = url.scheme in _DEFAULT_PORTS and bool(url.hostname) and url.port != 0
    except ValueError:  # a port that is no number, brackets that do not close
        usable = False
    if not usable or any(letter.isspace() for letter in entry):
        raise EndpointsError(f"entry {number} is no URL", "write http://HOST:PORT or https://HOST:PORT")
    if "@" in url.netloc:
        raise EndpointsError(f"entry {number} has credentials", "put them into OTEL_EXPORTER_OTLP_HEADERS")
    if url.query or url.fragment or (one.protocol == "grpc" and url.path.rstrip("/")):
        raise EndpointsError(f"entry {number} has more than a host and a port", "leave out what follows the port")
    return url
