"""One certificate authority for clients to trust, in place of all that a machine knows.

Every client of an SDK reads those when it is made, which takes most of a short test. If no server speaks TLS, one
does as well, in the variable `SSL_CERT_FILE`.
"""

from __future__ import annotations

from pathlib import Path

import certifi

END = "-----END CERTIFICATE-----\n"


def write_one_authority(folder: Path) -> Path:
    """Write the first of certifi's authorities into a folder; return the file."""
    first, _, _ = Path(certifi.where()).read_text(encoding="utf-8").partition(END)
    path = folder / "one-authority.pem"
    path.write_text(first + END, encoding="utf-8")
    return path
