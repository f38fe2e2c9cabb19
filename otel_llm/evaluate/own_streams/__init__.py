"""The evaluation of streams that the process itself owns: no segment is late or missing."""
