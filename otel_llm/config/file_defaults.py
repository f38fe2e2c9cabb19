"""The defaults of files that services write: modes, sizes, ages."""

from __future__ import annotations

from typing import Final

PRIVATE: Final = 0o600
"""The mode of a service's files about users: others may read them if the settings say so (`files: {mode}`)."""
SHARED: Final = 0o666
"""The mode of files that a person asks for, less the umask."""
FILE_BYTES: Final = 64 * 2**20
"""The size at which a file of a journal, or of decisions, is closed."""
FILE_S: Final = 600.0
"""The age at which a file of a journal is closed."""
FSYNC_INTERVAL_S: Final = 0.2
"""The interval at which a journal is forced to the disk."""
